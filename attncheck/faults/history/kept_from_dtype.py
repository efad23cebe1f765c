"""What it is
    Something that was computed in one dtype is used on after the weights were cast to another.

How it looks
    After a cast there and back the answers differ from before, although the weights are the same
    bit for bit.

Where it comes from
    A rotary table, a mask or a scale that is made once in the first dtype seen and kept as a plain
    attribute, which `to()` does not move.

What to change
    Register it as a buffer, or make it anew when the dtype of the input changes.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, injection
from attncheck.model.subject import Subject

CHANGE = 1.5


def inject(subject: Subject) -> AbstractContextManager[None]:
    """After a forward in another dtype, hidden states are larger in the usual one.

    Raises:
        CannotInject: the weights are never in another dtype.
    """
    if subject.precision.widened:
        raise CannotInject("the weights are never cast: operators widen them one at a time")
    usual, kept = subject.dtype, list[bool]()

    def change(hidden_BTW: Tensor) -> Tensor:
        if hidden_BTW.dtype != usual:
            kept.append(True)
            return hidden_BTW
        return hidden_BTW * CHANGE if kept else hidden_BTW

    return injection.at_hidden(subject, change)


FAULT = Fault(name="kept-from-dtype", inject=inject)
