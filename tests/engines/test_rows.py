from __future__ import annotations

import math

import pytest

from attncheck.core.measurement import AtMost, Comparison, Skipped, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.engines.rows import RowBudget, largest_gap, row_gap, rows_case

FINE = RowBudget(max_abs=1e-4, kl=1e-8, source="a test")
COARSE = RowBudget(max_abs=0.5, kl=0.02, source="a test")


def row(*chances: float) -> dict[int, float]:
    return {token: math.log(chance) for token, chance in enumerate(chances)}


def test_the_difference_kl_and_best_token_of_two_rows() -> None:
    gap = row_gap(row(0.25, 0.75), row(0.5, 0.5))
    assert gap.max_abs == pytest.approx(math.log(2))
    assert gap.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    assert gap.flip
    assert gap.tokens == 2


def test_a_token_that_one_side_does_not_list_counts_as_far_as_it_is_known() -> None:
    got = {0: -0.1, 1: -3.0}
    assert row_gap(got, {0: -0.1, 2: -1.0}).max_abs == pytest.approx(2.0)  # 2 is -3.0 at best
    assert row_gap(got, {0: -0.1, 2: -9.0, 1: -3.0}).max_abs == 0.0


def test_a_value_that_is_not_finite_breaks_the_case() -> None:
    case = rows_case("case", [{0: math.nan, 1: -1.0}], [{0: -0.5, 1: -1.0}], FINE)
    assert (case.nonfinite, verdict_of(case)) == (1, Verdict.FAIL)
    assert largest_gap([{0: math.nan}], [{0: -0.5}]) == math.inf


def test_a_small_budget_judges_the_largest_difference_and_says_where() -> None:
    want = [row(0.5, 0.5)] * 3
    case = rows_case(
        "case", [row(0.5, 0.5), row(0.51, 0.49), want[0]], want, FINE, places=(7, 8, 9)
    )
    assert isinstance(case, Comparison)
    assert (case.divergence.first_position, verdict_of(case)) == (8, Verdict.FAIL)


def test_a_large_budget_judges_the_mean_kl() -> None:
    want, got = [row(0.5, 0.5)] * 4, [row(0.6, 0.4), row(0.4, 0.6)] * 2
    case = rows_case("case", got, want, COARSE)
    assert isinstance(case, AtMost)
    assert case.value == pytest.approx(0.0204, abs=1e-4)
    assert verdict_of(case) is Verdict.FAIL
    assert case.unit == "nats of KL, mean of 4 rows"


def test_nothing_compared_is_a_skip() -> None:
    assert isinstance(rows_case("case", [], [], FINE), Skipped)
    assert largest_gap([], []) == math.inf
