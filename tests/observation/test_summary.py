"""Deviations as a few parts."""

from __future__ import annotations

from attncheck.observation.deviation import Deviation
from attncheck.observation.summary import Extent, grouped_parts

EXTENT = Extent(layers=frozenset({0, 1}), rows=3, length=8, starts=(0,))


def moved(row: int, at: int, by: float) -> Deviation:
    return Deviation(what="hidden", how="other token", layer=-1, row=row, at=at, amount=by)


def test_rows_that_are_moved_by_numbers_of_their_own_are_told_one_by_one() -> None:
    """Padded positions that are counted move each row by its own padding."""
    found = [moved(1, at, 1.0) for at in range(8)] + [moved(2, at, 3.0) for at in range(8)]
    parts = [group.part for group in grouped_parts(found, EXTENT)]
    assert [(part.rows, part.amount) for part in parts] == [((1,), 1.0), ((2,), 3.0)]


def test_a_row_that_is_moved_by_several_numbers_is_one_part() -> None:
    found = [moved(1, 0, 1.0), moved(1, 5, 3.0), moved(2, 5, 3.0)]
    (group,) = grouped_parts(found, EXTENT)
    assert group.part.amount is None
