"""What it is
    One of several codebooks is taken and not read.

How it looks
    Speech sounds dull, or is transcribed worse; text alone is right, and every shape is.

Where it comes from
    A loop over one codebook too few; offsets that send the codes of two codebooks to the same rows
    of the embedding; a channel for text that is counted as a codebook.

What to change
    Look the codes of each codebook up in its own table, and add all of them.

Axes: B batch, T positions, C codebooks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject

CODE = 1


def inject(subject: Subject) -> Injected:
    """Give the last codebook the same code everywhere.

    Raises:
        CannotInject: the model reads no codebooks.
    """
    adapter = subject.forward_adapter
    if adapter.codebooks is None:
        raise CannotInject("the model reads no codebooks")
    name = (adapter.codebooks.names or (adapter.ids_name,))[-1]
    axis = 1 if adapter.codebooks.names else 2

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        value = call.get(name)
        if not isinstance(value, Tensor) or value.ndim != 3:
            return call
        changed = value.clone()
        changed.select(axis, -1).fill_(CODE)
        return {**call, name: changed}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="codebook-ignored", inject=inject)
