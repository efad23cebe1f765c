"""What it is
    Labels are shifted twice, or not at all, before the loss.

How it looks
    The loss is that of predicting the token after the next one (high for ever), or that of copying
    the input (near zero).

Where it comes from
    Shifted in the collator and again in the model; a loss function that shifts inside, after a
    forward that did.

What to change
    Shift once: logits at t against the token at t + 1, and document who does it.

Axes: B batch, T positions.
"""

from __future__ import annotations

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Shift labels once more: each position is trained on the token after the next."""

    def change(labels_BT: Tensor) -> None:
        labels_BT.copy_(labels_BT.roll(-1, 1))
        labels_BT[:, -1] = injection.IGNORED

    return injection.with_labels(subject, change)


FAULT = Fault(name="label-shift", inject=inject)
