"""Verdicts are decided in one place, from numbers alone."""

from __future__ import annotations

import math

import pytest

from attncheck.core.finding import (
    Measurement,
    PrecisionLevel,
    Verdict,
    merged,
    skipped,
    verdict_of,
    worst_of_model,
)

BASE = {"name": "case", "max_abs": 1e-6, "budget": 1e-5, "scale": 10.0, "positions": 4}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.PASS),
        ({"max_abs": 1e-4}, Verdict.FAIL),
        ({"max_abs": 1e-4, "broken": Verdict.WARN}, Verdict.WARN),
        ({"expect": "differ"}, Verdict.FAIL),
        ({"expect": "differ", "max_abs": 1.0}, Verdict.PASS),
        ({"expect": "figure", "max_abs": 1.0}, Verdict.PASS),
        ({"positions": 0}, Verdict.VACUOUS),
        ({"nonfinite": 1, "max_abs": 0.0}, Verdict.FAIL),
        ({"expect": "figure", "nonfinite": 1}, Verdict.FAIL),
        ({"expect": "at-most", "value": 2.0, "limit": 2.0}, Verdict.PASS),
        ({"expect": "at-most", "value": 2.1, "limit": 2.0}, Verdict.FAIL),
        ({"expect": "at-most", "value": 0.5, "limit": 0.0}, Verdict.FAIL),
        ({"expect": "at-most", "value": 0.0, "limit": 0.0}, Verdict.PASS),
        ({"budget": 0.0, "max_abs": 0.0}, Verdict.PASS),
        ({"budget": 0.0, "max_abs": 1e-300}, Verdict.FAIL),
    ],
)
def test_a_case_is_judged_by_its_expectation(changes: dict[str, object], verdict: Verdict) -> None:
    assert verdict_of(Measurement(**{**BASE, **changes})) is verdict  # type: ignore[arg-type]


def test_a_difference_within_a_budget_that_could_hide_a_fault_is_noise_not_pass() -> None:
    coarse = Measurement(name="bf16", max_abs=0.5, budget=3.0, scale=30.0, positions=4)
    assert coarse.in_doubt
    assert verdict_of(coarse) is Verdict.NOISE
    assert (
        verdict_of(Measurement(name="bf16", max_abs=0.0, budget=3.0, scale=30.0, positions=4))
        is Verdict.PASS
    )


def test_the_ladder_tells_rounding_from_a_fault() -> None:
    shrinks = (
        PrecisionLevel(dtype="bfloat16", max_abs=4.0, budget=3.0),
        PrecisionLevel(dtype="float64", max_abs=1e-14, budget=1e-12),
    )
    stays = (
        PrecisionLevel(dtype="bfloat16", max_abs=4.0, budget=3.0),
        PrecisionLevel(dtype="float64", max_abs=5.4, budget=1e-12),
    )
    base = {"name": "case", "max_abs": 4.0, "budget": 3.0, "scale": 30.0, "positions": 4}
    assert verdict_of(Measurement(**base, ladder=shrinks)) is Verdict.NOISE  # type: ignore[arg-type]
    assert verdict_of(Measurement(**base, ladder=stays)) is Verdict.FAIL  # type: ignore[arg-type]


def test_a_difference_of_thousands_of_budgets_needs_no_ladder() -> None:
    assert not Measurement(name="case", max_abs=5.0, budget=1e-4, scale=30.0, positions=4).in_doubt
    assert Measurement(name="case", max_abs=5e-4, budget=1e-4, scale=30.0, positions=4).in_doubt


def test_merging_keeps_the_worst_and_counts_everything() -> None:
    parts = [
        Measurement(**{**BASE, "max_abs": value, "nonfinite": bad, "top1_flips": 1})
        for value, bad in ((1.0, 0), (0.1, 2))
    ]  # type: ignore[arg-type]
    whole = merged("whole", parts)
    assert (whole.positions, whole.nonfinite, whole.top1_flips) == (8, 2, 2)
    assert math.isinf(whole.excess)
    with pytest.raises(ValueError, match="case `none` merges nothing"):
        merged("none", [])


def test_merging_an_empty_comparison_compares_nothing() -> None:
    empty = Measurement(**{**BASE, "positions": 0})  # type: ignore[arg-type]
    assert verdict_of(merged("whole", [Measurement(**BASE), empty])) is Verdict.VACUOUS  # type: ignore[arg-type]


def test_a_model_is_skipped_only_when_nothing_ran() -> None:
    assert worst_of_model([Verdict.SKIP, Verdict.PASS]) is Verdict.PASS
    assert worst_of_model([Verdict.SKIP, Verdict.SKIP]) is Verdict.SKIP
    assert worst_of_model([]) is Verdict.SKIP
    assert (
        worst_of_model([Verdict.WARN, Verdict.NOISE, Verdict.VACUOUS, Verdict.ERROR])
        is Verdict.ERROR
    )
    assert worst_of_model([Verdict.ERROR, Verdict.FAIL]) is Verdict.FAIL


def test_a_skipped_case_says_why() -> None:
    case = skipped("4D mask", "the model takes none")
    assert (verdict_of(case), case.note) == (Verdict.SKIP, "the model takes none")
