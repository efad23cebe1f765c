"""A second fault: what was reported may still be there once the first one is explained."""

from __future__ import annotations

from dataclasses import replace

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
    found = [steps.diagnosed(subject, (case,), steps.Log(log.says)) for _, case in failing[:MOST]]
    others = [other for each in found if (other := _other(first, each)) is not None]
    if not others:
        return None
    second = max(others, key=_backed)
    log.add("another fault", Verdict.FAIL, second.summary)
    return second


def _other(first: Finding, second: Finding) -> Finding | None:
    """A finding that is proven to be of another kind than the first. One of both faults together
    has the first one's name, and what was measured beside it is of another family.
    """
    one, two = first.diagnosis, second.diagnosis
    if one is None or two is None or not is_proven(second):
        return None
    names = {one.fault, one.family}
    if two.fault and two.fault not in names:
        return second
    if not two.family or two.family in names:
        return None
    return replace(second, diagnosis=replace(two, fault=two.family, how="measured", residual=None))


def _backed(found: Finding) -> bool:
    """Whether the nearest hypothesis names the same fault as what was measured."""
    diagnosis = found.diagnosis
    nearest = (diagnosis.runner_up or {}).get("fault", "") if diagnosis else ""
    return bool(diagnosis and str(nearest).startswith(diagnosis.fault))
