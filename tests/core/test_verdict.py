"""The worst of several verdicts."""

from __future__ import annotations

import pytest

from attncheck.core.divergence import excess
from attncheck.core.errors import UsageError
from attncheck.core.verdict import STRICT, Verdict, failing, worst_of_model


def test_a_model_is_skipped_only_when_nothing_ran() -> None:
    assert worst_of_model([Verdict.SKIP, Verdict.PASS]) is Verdict.PASS
    assert worst_of_model([Verdict.SKIP, Verdict.SKIP]) is Verdict.SKIP
    assert worst_of_model([]) is Verdict.SKIP
    assert (
        worst_of_model([Verdict.WARN, Verdict.NOISE, Verdict.VACUOUS, Verdict.ERROR])
        is Verdict.ERROR
    )
    assert worst_of_model([Verdict.ERROR, Verdict.FAIL]) is Verdict.FAIL


@pytest.mark.parametrize(("better", "worse"), [("noise", "warn"), ("warn", "vacuous")])
def test_the_order_of_what_is_no_failure(better: str, worse: str) -> None:
    assert worst_of_model([Verdict(better), Verdict(worse)]) is Verdict(worse)


def test_what_counts_as_failure_is_what_was_named() -> None:
    assert failing([]) == frozenset()
    assert failing(["warn"]) == {Verdict.WARN}
    assert failing(["trap", "noise"]) == {"trap", Verdict.NOISE}
    assert failing(["skip=reads-ahead,no-encoder"]) == {Verdict.SKIP}
    assert failing(["error"], strict=True) == STRICT | {Verdict.ERROR}


@pytest.mark.parametrize("name", ["pass", "wran", ""])
def test_what_is_no_verdict_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"^unknown verdict `{name}`"):
        failing([name])


def test_nothing_of_nothing_is_no_excess() -> None:
    assert excess(0.0, 0.0) == 0.0
    assert excess(1e-9, 0.0) == float("inf")
