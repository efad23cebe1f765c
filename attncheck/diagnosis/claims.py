"""What the failing cases of a probe say themselves: the fault, and the module at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import BrokenCall, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.failure import failing
from attncheck.diagnosis.measured import TAKEN_OVER
from attncheck.diagnosis.repair import OWN_STORE
from attncheck.faults.registry import advice, names
from attncheck.model.provenance import AFTER
from attncheck.model.subject import Subject

PROVEN = ("reproduced", "measured")
"""Diagnoses that give the observed logits."""
MENDED = "With the values of one forward there the logits are right"
"""The proof of an operation that differs: it says where and not what."""


def named_by_the_probe(finding: Finding) -> Finding | None:
    """The finding as its own case explains it: a fitted scale, a map of heads, a shifted loss.

    A finding that did not fail needs no search either.
    """
    decisive = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    named = [case for case in decisive if case.cause.fault and not case.follows]
    # of the cases that name one fault, one may also say where it is
    alike = (case for case in named if case.cause.fault == named[0].cause.fault)
    case = next((case for case in alike if case.cause.module), next(iter(named), None))
    if decisive and all(isinstance(case, BrokenCall) for case in decisive):
        return finding  # it says itself which line raised
    if case is None:
        return finding if finding.verdict is not Verdict.FAIL else None
    found = Diagnosis(
        fault=case.cause.fault,
        how="repaired" if case.cause.repaired else "reproduced",
        residual=case.cause.residual,
        advice=advice(case.cause.fault),
        sentence=_sentence(case),
    )
    return replace(finding, diagnosis=found, location=_place_of(case))


def _sentence(case: Measurement) -> str:
    """What a case that names a module says of it."""
    text = case.note.removeprefix(f"{case.cause.module}: ")
    return f"{text[0].upper()}{text[1:]}." if case.cause.module and text else ""


def is_a_guess(named: Finding) -> bool:
    """Whether a case names a fault without a number or a place to prove it: because a special call
    fails. Where plain calls fail as well, the special one need not be the reason.
    """
    found = named.diagnosis
    return found is not None and found.residual is None and named.location is None


def is_by_operation(explained: Finding) -> bool:
    """Whether it says which operation differs, and no more: a name of a plainer call says more."""
    return explained.diagnosis is not None and MENDED in explained.diagnosis.sentence


def settles(explained: Finding) -> bool:
    """Whether no other case need be searched."""
    found = explained.diagnosis
    return found is not None and (found.how in PROVEN or found.fault == OWN_STORE)


def plain(finding: Finding, named: Finding | None) -> list[Measurement]:
    """The failing cases, without those that the probe named itself."""
    return failing(finding) if named is None else unclaimed(finding)


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


def contradicted(finding: Finding, shown: Finding | None = None) -> bool:
    """Whether a failing case measured another layer to be at fault than the one explained, or its
    own forwards have `shown` that all is wrong there: a model may have a second fault, which other
    calls show.
    """
    place = finding.location
    if shown is not None and shown.diagnosis is not None and shown.location is not None:
        seen, layer = TAKEN_OVER in shown.diagnosis.sentence, shown.location.layer
        if seen and place is not None and None not in (layer, place.layer):
            return layer != place.layer
    decisive = (case for case in finding.cases if verdict_of(case) is finding.verdict)
    named = next((case.cause.module for case in decisive if case.cause.module), "")
    layers = layer_number(named), None if place is None else layer_number(place.module)
    return None not in layers and layers[0] != layers[1]


def about_another_method(subject: Subject, finding: Finding) -> bool:
    """Whether the failing cases measured that a method is wrong which no plain forward calls: one
    of a cache, or of what generate() does around forward.
    """
    modules = {name for name, _ in subject.model.named_modules()}
    decisive = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    return all(
        case.cause.module not in modules and not case.cause.module.endswith(".forward")
        for case in decisive
        if case.rerun is None
    ) and not any(case.rerun for case in decisive)


def with_name(finding: Finding, named: Finding | None) -> Finding:
    """A measured finding without a name, with the one that its case gives it."""
    found, given = finding.diagnosis, named.diagnosis if named is not None else None
    if found is None or given is None or found.fault:
        return finding
    return replace(finding, diagnosis=replace(found, fault=given.fault))


def with_equals(found: Diagnosis, equals: Sequence[str]) -> Diagnosis:
    """A diagnosis with the faults that no call which was tried tells apart from it."""
    if not equals:
        return found
    text = f"No call that was tried tells it from `{'` or `'.join(equals)}`."
    return replace(found, advice=f"{found.advice} {text}")


def as_measured(finding: Finding) -> Finding:
    """A finding that no fault explains with what its worst case measured itself of one module,
    which no forward shows better: angles, heads, what a cache holds after an operation.

    Where the case says in numbers what was changed, that is better than a repair, too, and than
    a change without a name.
    """
    found = finding.diagnosis
    decisive = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    placed_cases = [case for case in decisive if case.cause.module and case.note]
    case = next(iter(sorted(placed_cases, key=lambda case: not case.cause.parts)), None)
    if found is None or case is None or case.rerun is not None:
        return finding
    mended = is_by_operation(finding)
    nameless = mended or found.how == "unexplained"
    if not nameless and (found.fault in names() or not case.cause.parts):
        return finding
    whole = f"{case.name}: {case.note}."
    says_where = case.cause.parts and case.note.startswith(f"{case.cause.module}: ")
    text = f"{case.note}." if says_where else f"{whole[0].upper()}{whole[1:]}"
    text = f"{text} {found.sentence}" if mended else text
    parts = tuple(replace(each, text=text) for each in case.cause.parts)
    measured = Diagnosis(
        fault="",
        how="measured",
        residual=found.residual if mended else None,
        sentence=text,
        advice=text,
        family=found.family,
        ruled_out=found.ruled_out,
        parts=parts or (found.parts if mended else ()),
    )
    return placed(replace(finding, diagnosis=measured))


def rank(found: Diagnosis | None) -> int:
    """0 for the best of several diagnoses without a proof: one that says what differs, then a
    repair.
    """
    if found is None:
        return 3
    return 0 if found.parts and found.how == "unexplained" else 1 if found.how == "repaired" else 2


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
