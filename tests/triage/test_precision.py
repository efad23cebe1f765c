"""Rounding is an answer only on evidence."""

from __future__ import annotations

import pytest

from attncheck.core.divergence import Divergence
from attncheck.core.measurement import Comparison
from attncheck.triage.answer import PrecisionLine
from attncheck.triage.precision import Ladder


def ladder(own: float, flips: int, finest: float, budget: float = 1e-12) -> Ladder:
    levels = (("bfloat16", own, 1.0, flips), ("float64", finest, budget, 0))
    lines = tuple(
        PrecisionLine(dtype=dtype, way="", max_abs=size, budget=limit, flips=count, positions=100)
        for dtype, size, limit, count in levels
    )
    cases = tuple(
        Comparison("", Divergence(max_abs=size, positions=100, scale=10.0), limit)
        for _, size, limit, _ in levels
    )
    return Ladder("bfloat16", lines, cases)


def test_tokens_that_change_and_shrink_are_rounding() -> None:
    found = ladder(0.5, 3, 1e-13)
    assert found.reproduces("batch", 0.0)
    assert found.is_rounding
    assert found.failing is None


def test_a_difference_without_a_changed_token_reproduces_nothing() -> None:
    assert not ladder(0.5, 0, 1e-13).reproduces("batch", 0.0)


@pytest.mark.parametrize(("stated", "shown"), [(0.6, True), (2.0, False)])
def test_a_stated_difference_must_be_reached(stated: float, shown: bool) -> None:
    assert ladder(0.5, 0, 1e-13).reproduces("cache", stated) is shown


@pytest.mark.parametrize(("flips", "shown"), [(3, False), (40, True)])
def test_a_lost_score_needs_many_changed_tokens(flips: int, shown: bool) -> None:
    assert ladder(0.5, flips, 1e-13).reproduces("upgrade", 0.0) is shown


def test_what_stays_in_float64_is_no_rounding() -> None:
    found = ladder(0.5, 3, 0.02, budget=1.6e-14)
    assert not found.is_rounding
    assert found.failing is not None
    assert found.failing[0] == "float64"
