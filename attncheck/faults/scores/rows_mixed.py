"""What it is
    Rows of a batch read each other.

How it looks
    A prompt answers differently depending on its neighbours in the batch, far beyond rounding.

Where it comes from
    A reshape that merges batch and heads in one order and splits them in another; a norm or router
    over the batch.

What to change
    Keep the batch axis apart in the module that the location names.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject

SHARE = 0.1


def inject(subject: Subject) -> Injected:
    """Replace a share of each row's hidden states by those of the row before it."""

    def change(hidden_BTW: Tensor) -> Tensor:
        return hidden_BTW + SHARE * (hidden_BTW.roll(1, 0) - hidden_BTW)

    return injection.at_hidden(subject, change)


FAULT = Fault(name="rows-mixed", inject=inject)
