"""What the cases of a probe say themselves of a failure: a fault, and the module."""

from __future__ import annotations

from dataclasses import replace

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import BrokenCall, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.faults.registry import advice


def named_by_the_probe(finding: Finding) -> Finding | None:
    """The finding as its own case explains it: a fitted scale, a map of heads, a shifted loss.

    A finding that did not fail needs no search either.
    """
    decisive = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    case = next((case for case in decisive if case.cause.fault), None)
    if decisive and all(isinstance(case, BrokenCall) for case in decisive):
        return finding  # it says itself which line raised
    if case is None:
        return finding if finding.verdict is not Verdict.FAIL else None
    found = Diagnosis(
        fault=case.cause.fault,
        how="reproduced",
        residual=case.cause.residual,
        advice=advice(case.cause.fault),
    )
    return replace(finding, diagnosis=found, location=_place_of(case))


def presumed(finding: Finding) -> bool:
    """Whether a case names a fault that it has not reproduced, and others failed that may have
    another cause: a call that is wrong anyway is wrong after any operation on its cache, too.
    """
    decisive = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    named = [case for case in decisive if case.cause.fault]
    proven = any(case.cause.residual is not None for case in named)
    others = any(case.rerun is not None and not case.cause.fault for case in decisive)
    return bool(named) and not proven and others


def _place_of(case: Measurement) -> Location | None:
    module = case.cause.module
    return Location(module=module, layer=layer_number(module)) if module else None


def placed(finding: Finding) -> Finding:
    """With the module that the failing case names itself, where the search has found no place."""
    decisive = (case for case in finding.cases if verdict_of(case) is finding.verdict)
    case = next((case for case in decisive if case.cause.module), None)
    if case is None or finding.location is not None:
        return finding
    return replace(finding, location=_place_of(case))
