"""What the failing cases of a probe say themselves: the fault, and the module at fault."""

from __future__ import annotations

from dataclasses import replace

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import BrokenCall, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.faults.registry import advice
from attncheck.model.provenance import AFTER

PROVEN = ("reproduced", "measured")
"""Diagnoses that give the observed logits."""


def named_by_the_probe(finding: Finding) -> Finding | None:
    """The finding as its own case explains it: a fitted scale, a map of heads, a shifted loss.

    A finding that did not fail needs no search either.
    """
    decisive = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    case = next((case for case in decisive if case.cause.fault and not case.follows), None)
    if decisive and all(isinstance(case, BrokenCall) for case in decisive):
        return finding  # it says itself which line raised
    if case is None:
        return finding if finding.verdict is not Verdict.FAIL else None
    found = Diagnosis(
        fault=case.cause.fault,
        how="repaired" if case.cause.repaired else "reproduced",
        residual=case.cause.residual,
        advice=advice(case.cause.fault),
    )
    return replace(finding, diagnosis=found, location=_place_of(case))


def is_a_guess(named: Finding) -> bool:
    """Whether a case names a fault without a number or a place to prove it: because a special call
    fails. Where plain calls fail as well, the special one need not be the reason.
    """
    found = named.diagnosis
    return found is not None and found.residual is None and named.location is None


def unclaimed(finding: Finding) -> list[Measurement]:
    """The failing cases with forwards of their own that name no fault, beside one that does."""
    decisive = (case for case in finding.cases if verdict_of(case) is finding.verdict)
    return [case for case in decisive if case.rerun is not None and not case.cause.fault]


def about_history(finding: Finding) -> bool:
    """Whether the case that names a fault compares a call with itself after another one: then plain
    calls are wrong as well, because of what that one left.
    """
    decisive = (case for case in finding.cases if verdict_of(case) is finding.verdict)
    case = next((case for case in decisive if case.cause.fault and not case.follows), None)
    made = case.rerun.provenance if case is not None and case.rerun is not None else None
    return made is not None and made.how == AFTER


def with_name(finding: Finding, named: Finding | None) -> Finding:
    """A measured finding without a name, with the one that its case gives it."""
    found, given = finding.diagnosis, named.diagnosis if named is not None else None
    if found is None or given is None or found.fault:
        return finding
    return replace(finding, diagnosis=replace(found, fault=given.fault))


def as_measured(finding: Finding) -> Finding:
    """An unexplained finding with what its worst case measured itself of one module, which no
    forward shows better: angles, heads, what a cache holds after an operation.
    """
    found = finding.diagnosis
    decisive = (case for case in finding.cases if verdict_of(case) is finding.verdict)
    case = next((case for case in decisive if case.cause.module and case.note), None)
    if found is None or found.how != "unexplained" or case is None or case.rerun is not None:
        return finding
    text = f"{case.name}: {case.note}."
    text = f"{text[0].upper()}{text[1:]}"
    measured = replace(found, how="measured", residual=None, sentence=text, advice=text)
    return placed(replace(finding, diagnosis=measured))


def is_proven(finding: Finding) -> bool:
    """Whether the diagnosis gives the observed logits."""
    return finding.diagnosis is not None and finding.diagnosis.how in PROVEN


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
