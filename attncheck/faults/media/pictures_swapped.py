"""What it is
    The pictures of a batch, or of a row, are put in each other's places.

How it looks
    One picture at a time is right; of two, each is described where the other was asked about.

Where it comes from
    Features that are sorted by size or by tile and not sorted back; a flat list of pictures that is
    dealt out to the rows in another order.

What to change
    Deal the features out in the order in which their placeholders stand, row by row.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, items
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Deal out the pictures of each call in reverse order; places without one stay empty."""
    recipe = items.medium_of(subject).require()
    length = recipe.shapes[0][0]

    def change(value: Tensor, call: dict[str, Any]) -> Tensor:
        size = value.shape[2:] if recipe.stacked else (length, *value.shape[1:])
        whole = value.reshape(-1, *size)
        there = whole.flatten(1).any(1).nonzero()[:, 0]
        changed = whole.clone()
        changed[there] = whole[there.flip(0)]
        return changed.reshape(value.shape)

    return items.at_items(subject, change)


FAULT = Fault(name="pictures-swapped", inject=inject)
