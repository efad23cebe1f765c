"""Logits that no plain pass gives: those of generate(), of `logits_to_keep`, of a call after
another one.

Axes: B batch, T positions, N kept positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from attncheck.model.inputs import Row

if TYPE_CHECKING:
    from attncheck.model.subject import Subject


AFTER = "after another call"


@final
@dataclass(frozen=True)
class Provenance:
    """How the first logits of a case were really made, beside the pass whose logits they ought to
    be.

    `again` makes them once more, logits_BNV; `columns` are the N positions of the pass that they
    belong to, or all. `handed` are the positions that generate() gave each of its forwards, as the
    model got them.
    """

    how: str
    again: Callable[[Subject], Tensor]
    columns: tuple[int, ...] | None = None
    handed: tuple[Row | None, ...] = ()

    def told(self, length: int) -> Row | None:
        """The position of each of `length` tokens as it was handed over, for one row; None where it
        was not for all.
        """
        given = [row for row in self.handed if row is not None]
        flat = tuple(position for row in given for position in row)
        if len(flat) == length:
            return flat
        return given[-1] if given and len(given[-1]) == length else None
