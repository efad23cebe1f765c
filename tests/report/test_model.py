"""A report read back: its evidence is judged as it was."""

from __future__ import annotations

import pytest
from probing import finding

from attncheck.core.finding import Evidence, Verdict
from attncheck.model.subject import Subject
from attncheck.probing import judge_cases


@pytest.mark.parametrize(
    "probe",
    ["future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat"],
)
def test_saved_evidence_is_judged_the_same(subject: Subject, probe: str) -> None:
    found = finding(subject, probe)
    assert judge_cases(Evidence(measurements=found.cases)).verdict in (found.verdict, Verdict.PASS)
