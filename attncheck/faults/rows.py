"""Faults of the batch: rows that read each other.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from attncheck.faults.engine.inject import at_hidden
from attncheck.model.subject import Subject

SHARE = 0.1


def rows_mixed(subject: Subject) -> AbstractContextManager[None]:
    """Each row's hidden states take a part of the row before it."""

    def change(hidden_BTW: Tensor) -> Tensor:
        return hidden_BTW + SHARE * (hidden_BTW.roll(1, 0) - hidden_BTW)

    return at_hidden(subject, change)
