"""A second fault: what was reported may still be there once the first one is explained."""

from __future__ import annotations

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.claims import is_proven
from attncheck.model.subject import Subject
from attncheck.triage import axes, steps
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

MOST = 2
"""Failing calls that are explained."""


def another(
    subject: Subject,
    material: Material,
    patterns: list[CallPattern],
    first: Finding,
    log: steps.Log,
) -> Finding | None:
    """A proven fault of another name, in another call than the first one failed in."""
    if first.diagnosis is None or not is_proven(first) or not first.diagnosis.fault:
        return None
    known = {case.name for case in first.cases if verdict_of(case) is Verdict.FAIL}
    failing = []
    for pattern, case in axes.measured(subject, material, patterns):
        if axes.fails(case) and case.name not in known:
            failing.append((pattern, case))
    for _, case in failing[:MOST]:
        found = steps.diagnosed(subject, (case,), steps.Log(log.says))
        if _is_other(first, found):
            log.add("another fault", Verdict.FAIL, found.summary)
            return found
    return None


def _is_other(first: Finding, second: Finding) -> bool:
    """Whether a finding is proven to be of another kind than the first."""
    one, two = first.diagnosis, second.diagnosis
    if one is None or two is None or not is_proven(second):
        return False
    names = {one.fault, one.family}
    return bool(two.fault or two.family) and not names & {two.fault or two.family, two.family}
