"""Numbers as people read them."""

from __future__ import annotations

import pytest

from attncheck.core.divergence import Divergence
from attncheck.core.measurement import AtMost, Comparison, Figure, Measurement, skipped
from attncheck.report.numbers import cells, count, number, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (12, "12"),
        (0.25, "0.25"),
        (5.6382, "5.64"),
        (1.3e-13, "1.3e-13"),
        (4e-5, "4.0e-5"),
        (123456.0, "1.2e5"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_seconds_and_counts() -> None:
    assert [seconds(value) for value in (0.24, 12.3, 200.0)] == ["0.2 s", "12 s", "3 min 20 s"]
    assert [count(value) for value in (12, 66_400, 134_515_008, 7_200_000_000)] == [
        "12",
        "66.4 k",
        "134.5 M",
        "7.2 B",
    ]


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        (AtMost("case", 2.0, "B", limit=4.0), ("2 B", "4", "-")),
        (Figure("case", 2.0, "B"), ("2 B", "-", "-")),
        (skipped("case", "no cache"), ("-", "-", "-")),
        (
            Comparison("case", Divergence(max_abs=0.25, positions=1, kl=0.5), 1e-13, unit="losses"),
            ("0.25 losses", "1.0e-13", "0.5"),
        ),
        (
            Comparison("case", Divergence(max_abs=0.0, positions=1, nonfinite=7), 1e-13),
            ("7 nan", "1.0e-13", "-"),
        ),
    ],
)
def test_the_numbers_of_a_case(case: Measurement, texts: tuple[str, str, str]) -> None:
    shown = cells(case)
    assert (shown.measured, shown.allowed, shown.kl) == texts
