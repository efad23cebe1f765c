"""The worst of several verdicts."""

from __future__ import annotations

from attncheck.core.verdict import Verdict, worst_of_model


def test_a_model_is_skipped_only_when_nothing_ran() -> None:
    assert worst_of_model([Verdict.SKIP, Verdict.PASS]) is Verdict.PASS
    assert worst_of_model([Verdict.SKIP, Verdict.SKIP]) is Verdict.SKIP
    assert worst_of_model([]) is Verdict.SKIP
    assert (
        worst_of_model([Verdict.WARN, Verdict.NOISE, Verdict.VACUOUS, Verdict.ERROR])
        is Verdict.ERROR
    )
    assert worst_of_model([Verdict.ERROR, Verdict.FAIL]) is Verdict.FAIL
