"""Verdicts of cases are decided in one place, from numbers alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from attncheck.core.divergence import Divergence, PrecisionLevel
from attncheck.core.measurement import (
    AtMost,
    Cause,
    Comparison,
    Figure,
    Measurement,
    low_only,
    skipped,
    verdict_of,
)
from attncheck.core.merging import merged
from attncheck.core.verdict import Verdict


def compared(
    max_abs: float = 1e-6, budget: float = 1e-5, scale: float = 10.0, **rest: Any
) -> Comparison:
    of_case = {key: rest.pop(key) for key in ("expect", "broken", "ladder", "cause") if key in rest}
    divergence = Divergence(**{"max_abs": max_abs, "scale": scale, "positions": 4, **rest})
    return Comparison("case", divergence, budget, **of_case)


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (compared(), Verdict.PASS),
        (compared(1e-4), Verdict.FAIL),
        (compared(math.nan), Verdict.FAIL),
        (compared(budget=math.nan), Verdict.FAIL),
        (compared(1e-4, broken=Verdict.WARN), Verdict.WARN),
        (compared(expect="differ"), Verdict.FAIL),
        (compared(1.0, expect="differ"), Verdict.PASS),
        (compared(1.0, expect="figure"), Verdict.PASS),
        (compared(positions=0), Verdict.VACUOUS),
        (compared(0.0, nonfinite=1), Verdict.FAIL),
        (compared(expect="figure", nonfinite=1), Verdict.FAIL),
        (AtMost("case", 2.0, limit=2.0), Verdict.PASS),
        (AtMost("case", 2.1, limit=2.0), Verdict.FAIL),
        (AtMost("case", math.nan, limit=2.0), Verdict.FAIL),
        (AtMost("case", 0.5), Verdict.FAIL),
        (AtMost("case", 0.0), Verdict.PASS),
        (AtMost("case", 0.0, positions=0), Verdict.VACUOUS),
        (Figure("case", 2.0), Verdict.PASS),
        (Figure("case", 2.0, nonfinite=1), Verdict.FAIL),
        (compared(0.0, budget=0.0), Verdict.PASS),
        (compared(1e-300, budget=0.0), Verdict.FAIL),
    ],
)
def test_a_case_is_judged_by_its_expectation(case: Measurement, verdict: Verdict) -> None:
    assert verdict_of(case) is verdict


def test_nan_is_beyond_every_budget_and_the_worst_of_all() -> None:
    whole = merged("whole", [compared(1.0), compared(math.nan), compared(2.0)])
    assert whole.beyond
    assert math.isnan(whole.max_abs)


def test_a_difference_within_a_budget_that_could_hide_a_fault_is_noise_not_pass() -> None:
    coarse = compared(0.5, budget=3.0, scale=30.0)
    assert coarse.in_doubt
    assert verdict_of(coarse) is Verdict.NOISE
    assert verdict_of(compared(0.0, budget=3.0, scale=30.0)) is Verdict.PASS


def test_a_higher_precision_tells_rounding_from_a_fault() -> None:
    first = PrecisionLevel(dtype="bfloat16", max_abs=4.0, budget=3.0)

    def in_float64(max_abs: float) -> Verdict:
        second = PrecisionLevel(dtype="float64", max_abs=max_abs, budget=1e-12)
        return verdict_of(compared(4.0, budget=3.0, scale=30.0, ladder=(first, second)))

    assert in_float64(1e-14) is Verdict.NOISE
    assert in_float64(5.4) is Verdict.FAIL
    assert in_float64(math.nan) is Verdict.FAIL


def test_what_only_the_lower_precision_has_is_judged_by_its_own_budget() -> None:
    top = PrecisionLevel(dtype="float64", max_abs=1e-14, budget=1e-12)

    def in_bfloat16(max_abs: float, **rest: Any) -> Verdict:
        low = PrecisionLevel(dtype="bfloat16", max_abs=max_abs, budget=3.0)
        return verdict_of(compared(max_abs, budget=3.0, ladder=(low, top), **rest))

    assert in_bfloat16(2.0) is Verdict.PASS
    assert in_bfloat16(4.0) is Verdict.NOISE
    assert in_bfloat16(4.0, cause=Cause("tables-rounded")) is Verdict.FAIL
    assert in_bfloat16(10.0) is Verdict.FAIL
    assert in_bfloat16(10.0, broken=Verdict.WARN) is Verdict.WARN


def test_a_difference_of_thousands_of_budgets_needs_no_higher_precision() -> None:
    assert not compared(5.0, budget=1e-4, scale=30.0).in_doubt
    assert compared(5e-4, budget=1e-4, scale=30.0).in_doubt


def test_merging_keeps_the_worst_and_counts_everything() -> None:
    whole = merged("whole", [compared(1.0, top1_flips=1), compared(0.1, nonfinite=2, top1_flips=1)])
    assert (whole.positions, whole.nonfinite, whole.divergence.top1_flips) == (8, 2, 2)
    assert math.isinf(whole.excess)
    with pytest.raises(ValueError, match="case `none` merges nothing"):
        merged("none", [])


def test_merging_an_empty_comparison_compares_nothing() -> None:
    assert verdict_of(merged("whole", [compared(), compared(positions=0)])) is Verdict.VACUOUS


def test_a_skipped_case_says_why() -> None:
    case = skipped("4D mask", "the model takes none")
    assert (verdict_of(case), case.note) == (Verdict.SKIP, "the model takes none")


def levels(low: float, top: float) -> tuple[PrecisionLevel, ...]:
    below = PrecisionLevel(dtype="bfloat16", max_abs=low, budget=1e-2)
    return (below, PrecisionLevel(dtype="float64", max_abs=top, budget=1e-14))


@pytest.mark.parametrize(
    ("case", "alone"),
    [
        (compared(ladder=levels(1e-1, 1e-15)), True),
        (compared(ladder=levels(1e-3, 1e-15), nonfinite=1), True),
        (compared(ladder=levels(1e-3, 1e-15)), False),
        (compared(ladder=levels(1e-1, 1e-1)), False),
        (compared(ladder=levels(1e-1, 1e-1), nonfinite=1), False),
        (compared(ladder=levels(1e-1, 1e-15), expect="differ"), False),
        (compared(1e-1), False),
    ],
)
def test_a_difference_of_the_lower_precision_alone(case: Measurement, alone: bool) -> None:
    assert low_only(case) is alone


def test_what_a_case_follows_from_is_no_part_of_what_it_measured() -> None:
    case = AtMost("case", 0.0)
    later = dataclasses.replace(case, follows="decode-paths")
    assert later == case
    assert "decode-paths" not in repr(later)
