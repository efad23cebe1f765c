"""What a report comes to, and saved evidence judged again."""

from __future__ import annotations

import pytest
from probing import finding
from report.reports import NASTY, crashed, failing, passing, report, skipping, target, vacuous

from attncheck.core.finding import Evidence, KnownFinding
from attncheck.core.ruling import judge_cases
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.report.model import Report


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        (report(target("a", passing())), 0, ""),
        (report(target("a", failing())), 1, "chunks 12+12"),
        (report(target("a", failing(known=KnownFinding(by="baseline")), passing())), 0, ""),
        (report(target("a", crashed())), 3, "ValueError"),
        (report(target("a", skipping())), 5, "nothing ran\n\ngradient: the weights are quantised"),
        (report(target("a", error=NASTY)), 2, 'a: a "quoted"'),
        (report(target("a", vacuous()), fail_on=("vacuous",), exit_code=1), 1, "batch-rows"),
    ],
)
def test_raise_for_failures(made: Report, code: int, says: str) -> None:
    assert made.exit_code == code
    if not code:
        made.raise_for_failures()
        return
    with pytest.raises(AssertionError) as caught:
        made.raise_for_failures()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "probe",
    ["future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat"],
)
def test_saved_evidence_is_judged_the_same(subject: Subject, probe: str) -> None:
    found = finding(subject, probe)
    assert judge_cases(Evidence(measurements=found.cases)).verdict in (found.verdict, Verdict.PASS)
