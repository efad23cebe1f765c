"""The usual ruling: the worst case decides, and one sentence says what happened."""

from __future__ import annotations

import math
from typing import Any

import pytest

from attncheck.core.finding import Evidence
from attncheck.core.measurement import (
    AtMost,
    Comparison,
    Divergence,
    Figure,
    Measurement,
    Relation,
    following,
    skipped,
)
from attncheck.core.ruling import describe, judge_cases
from attncheck.core.verdict import Verdict


def compared(max_abs: float, expect: Relation = "equal") -> Comparison:
    divergence = Divergence(max_abs=max_abs, positions=4, first_position=2, scale=10.0)
    return Comparison("case", divergence, 1e-5, expect=expect)


@pytest.mark.parametrize(
    ("cases", "verdict", "summary"),
    [
        (
            [compared(2e-6), compared(0.0), Figure("size", 2.0)],
            Verdict.PASS,
            "3 cases passed over 9 positions; largest difference 0.2x the budget",
        ),
        (
            [compared(1e-6), compared(1.0), compared(2.0)],
            Verdict.FAIL,
            "case: logits differ by 2 from position 2, rounding explains 1e-05 (and 1 more)",
        ),
        (
            [compared(1.0), following(compared(2.0), "padding")],
            Verdict.FAIL,
            "case: logits differ by 1 from position 2, rounding explains 1e-05 (and 1 more)",
        ),
        (
            [following(compared(2.0), "padding")],
            Verdict.FAIL,
            "case: logits differ by 2 from position 2, rounding explains 1e-05; "
            "follows from `padding`",
        ),
        (
            [compared(0.0, expect="differ")],
            Verdict.FAIL,
            "case: logits move by 0, no more than rounding (1e-05), where they must change",
        ),
        ([skipped("case", "no cache"), Figure("size", 2.0)], Verdict.SKIP, "no cache"),
        ([Figure("size", 2.0)], Verdict.SKIP, "no case could be judged"),
    ],
)
def test_the_worst_case_decides(cases: list[Measurement], verdict: Verdict, summary: str) -> None:
    ruling = judge_cases(Evidence(measurements=tuple(cases)))
    assert (ruling.verdict, ruling.summary) == (verdict, summary)


def test_each_kind_of_case_in_words() -> None:
    assert describe(AtMost("case", 3.0, "B", limit=2.0)) == "3 B, expected at most 2"
    assert describe(Figure("case", 3.0, "B", note="as measured")) == "3 B; as measured"
    assert describe(AtMost("case", math.nan, nonfinite=2)) == "2 values are not finite"
    assert describe(AtMost("case", 0.0, positions=0)) == "nothing was compared"


def test_a_case_without_a_first_position_names_none() -> None:
    divergence = Divergence(max_abs=2.0, positions=3, scale=1.0)
    text = describe(Comparison("case", divergence, 1e-3, ""))
    assert text == "logits differ by 2, rounding explains 0.001"


@pytest.mark.parametrize("changes", [{"nonfinite": 2}, {"positions": 0}])
def test_what_was_not_measured_is_not_in_doubt(changes: dict[str, int]) -> None:
    usual: dict[str, Any] = {"max_abs": 5e-3, "positions": 3, "scale": 100.0}
    doubtful = Comparison("case", Divergence(**usual), 1e-3, "")
    assert doubtful.in_doubt
    assert not Comparison("case", Divergence(**{**usual, **changes}), 1e-3, "").in_doubt
