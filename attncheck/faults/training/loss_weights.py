"""What it is
    Labels are shifted correctly, but weigh too much, too little or nothing in the loss.

How it looks
    The loss depends on padding, on the length of rows or on how a batch is cut into steps; some
    tokens are never trained, or tokens that should not be are.

Where it comes from
    A sum divided by positions instead of labels, a mean of means over rows, a slice too short by
    one, -100 replaced before the loss, label smoothing that nobody asked for.

What to change
    Sum the cross entropy of the labels that are not -100, and divide by their number or by
    `num_items_in_batch`.

Axes: B batch, T positions.
"""

from __future__ import annotations

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.loss import own_shift
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Leave the first label that the loss trains on out of it, in each row."""
    first = own_shift(subject)

    def change(labels_BT: Tensor) -> None:
        labels_BT[:, first] = injection.IGNORED

    return injection.with_labels(subject, change)


FAULT = Fault(name="loss-weights", inject=inject)
