"""Expected failures: known while they last, reported when they pass, failing when they have
expired.
"""

from datetime import date

import pytest

from attncheck.core.divergence import Divergence
from attncheck.core.finding import Control, Finding
from attncheck.core.measurement import Comparison
from attncheck.core.verdict import Verdict
from attncheck.suite.expected import settle
from attncheck.suite.plan import ExpectedFailure

TODAY = date(2027, 1, 1)


def case(name: str, max_abs: float) -> Comparison:
    return Comparison(name, Divergence(max_abs=max_abs, positions=4, scale=1.0), 1e-9)


def finding(**failing: float) -> Finding:
    cases = tuple(case(name, amount) for name, amount in failing.items())
    verdict = Verdict.FAIL if any(amount > 1e-9 for amount in failing.values()) else Verdict.PASS
    return Finding(probe="decode-paths", verdict=verdict, cases=cases)


def entry(**given: object) -> ExpectedFailure:
    return ExpectedFailure(**{"reason": "mended soon", "where": "suite.yaml:9", **given})  # type: ignore[arg-type]


def test_a_covered_failure_is_known() -> None:
    settled, notes = settle(
        finding(chunks=1.0), [entry(link="https://x/1", expires=date(2027, 1, 1))], TODAY
    )
    assert settled.verdict is Verdict.FAIL
    assert settled.known is not None
    assert str(settled.known) == "expected: mended soon, until 2027-01-01 https://x/1"
    assert notes == ()


def test_one_case_that_is_not_covered_makes_it_count() -> None:
    settled, _ = settle(finding(chunks=1.0, steps=1.0), [entry(case="chunks")], TODAY)
    assert settled.known is None


def test_two_entries_may_cover_it_together() -> None:
    settled, _ = settle(
        finding(chunks=1.0, steps=1.0),
        [entry(case="chunks"), entry(case="st*", reason="other")],
        TODAY,
    )
    assert settled.known is not None
    assert settled.known.reason == "mended soon; other"


def test_an_unexpected_pass_is_reported_with_its_place() -> None:
    settled, notes = settle(finding(chunks=0.0), [entry()], TODAY)
    assert settled.known is None
    assert notes == (
        "decode-paths was expected to fail and passes: remove the entry at suite.yaml:9 (mended soon)",
    )


def test_a_case_that_passes_while_another_fails_is_reported() -> None:
    settled, notes = settle(
        finding(chunks=0.0, steps=1.0), [entry(case="chunks"), entry(case="steps")], TODAY
    )
    assert settled.known is not None
    assert notes == (
        "decode-paths (chunks) was expected to fail and passes: remove the entry at suite.yaml:9 (mended soon)",
    )


def test_an_expired_entry_counts_and_is_reported() -> None:
    settled, notes = settle(finding(chunks=1.0), [entry(expires=date(2026, 12, 31))], TODAY)
    assert settled.known is None
    assert notes == (
        "decode-paths was expected to fail until 2026-12-31: the entry at suite.yaml:9 has expired (mended soon)",
    )


@pytest.mark.parametrize(
    ("verdicts", "known"), [({Verdict.FAIL}, False), ({Verdict.VACUOUS}, True)]
)
def test_only_the_named_verdicts_are_accepted(verdicts: set[Verdict], known: bool) -> None:
    vacuous = Finding(
        probe="padding",
        verdict=Verdict.VACUOUS,
        controls=(Control(fault="padding-visible", detected=False),),
    )
    settled, notes = settle(vacuous, [entry(verdicts=frozenset(verdicts))], TODAY)
    assert (settled.known is not None) is known
    assert notes == ()


def test_a_skipped_probe_says_nothing_about_its_entry() -> None:
    skipped = Finding(probe="decode-paths", verdict=Verdict.SKIP, skip_reason="no cache")
    assert settle(skipped, [entry()], TODAY) == (skipped, ())


def test_other_probes_are_left_alone() -> None:
    before = finding(chunks=1.0)
    assert settle(before, [entry(probe="kv-*")], TODAY) == (before, ())
