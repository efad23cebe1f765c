"""What it is
    Cross attention reads states that its mask hides: tokens in front of a picture, or rows without
    one, read it.

How it looks
    Text in front of a picture depends on it; a row of text answers differently beside a row with a
    picture.

Where it comes from
    A row of the mask that hides everything becomes a mean over all states, and the output of the
    attention is added; a mask that is not passed in a step.

What to change
    Set the output of the cross attention to zero where a token may read no state.

Axes: B batch, T positions, N items.
"""

from __future__ import annotations

from typing import Any

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection, items
from attncheck.model.media import CROSS_MASKS
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let every token of a call read all items that any token of any row may read.

    Raises:
        CannotInject: the model takes no picture, or no mask over its states.
    """
    names = items.medium_of(subject).names.intersection(CROSS_MASKS)
    if not names:
        raise CannotInject("forward takes no mask over the states of pictures")

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        opened = {
            name: call[name].amax((0, 1), keepdim=True).expand_as(call[name]).contiguous()
            for name in names
            if call.get(name) is not None
        }
        return {**call, **opened}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="masked-states-visible", inject=inject)
