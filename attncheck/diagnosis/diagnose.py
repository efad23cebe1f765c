"""From a finding that failed to one that explains itself: which fault, where, and what to run to
see it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from attncheck.attention.layers import layer_number
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.finding import Diagnosis, Finding, Location, Measurement, Verdict, verdict_of
from attncheck.diagnosis.failure import Failure, failing, open_case, unmeasured
from attncheck.diagnosis.locate import (
    in_attention,
    locate,
    locate_leak,
    locate_padding,
    locate_unsteady,
)
from attncheck.diagnosis.outside import OutsideFault, carried_elsewhere, explained_outside
from attncheck.diagnosis.recorded import spec_dict
from attncheck.diagnosis.repair import OWN_STORE, repaired
from attncheck.diagnosis.repro import offered
from attncheck.diagnosis.reproduce import Search, TriedHypothesis
from attncheck.faults.registry import advice
from attncheck.model.forward_spec import ForwardSpec, all_ones
from attncheck.model.subject import Subject

SHARE = 0.75
"""The search for more runners-up ends when it has taken this share of the failed probe's own time.
"""
CASES = 2
EXPECTED = (
    Unsupported,
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    NotImplementedError,
)
"""What a broken model may raise when it is asked once more; the finding then stands without an
explanation.
"""


@final
@dataclass
class Diagnoser:
    """Explains findings of one run. What it found on a model is tried first on that model's next
    failure.

    `repro` is where scripts go that show a failure without this tool; only those that do show it
    are left there.
    """

    repro: Path | None = None
    known: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, subject: Subject, finding: Finding) -> Finding:
        """The same finding with diagnosis, location and what replays it. Never raises."""
        told = _named_by_the_probe(finding)
        if told is not None:
            return told
        until = time.perf_counter() + SHARE * finding.seconds
        known = self.known.get(id(subject), ())
        try:
            explained = _placed(_searched(subject, finding, until, known))
        except EXPECTED as error:
            why = Diagnosis(
                fault="",
                how="unexplained",
                advice=f"The search for the fault ended early: {first_line(error)}",
            )
            return _placed(replace(finding, diagnosis=why))
        if explained.diagnosis is not None and explained.diagnosis.how == "reproduced":
            self.known[id(subject)] = tuple(dict.fromkeys((explained.diagnosis.fault, *known)))
        return explained if self.repro is None else _with_script(subject, explained, self.repro)


def _with_script(subject: Subject, finding: Finding, directory: Path) -> Finding:
    try:
        told: dict[str, Any] = {"script": str(offered(subject, finding, directory))}
    except EXPECTED as reason:
        told = {"no_script": str(reason)}
    return replace(finding, replay={**finding.replay, **told})


ELSEWHERE: dict[str, Callable[[Failure], Location | None]] = {
    "leak-outside-attention": locate_leak,
    "dropout-active": locate_unsteady,
    "padding-visible": locate_padding,
}
"""Faults that show best in another comparison than the one that failed."""


def diagnose(subject: Subject, finding: Finding) -> Finding:
    """One finding explained by itself."""
    return Diagnoser()(subject, finding)


def _named_by_the_probe(finding: Finding) -> Finding | None:
    """Some probes compute the prediction themselves: a fitted scale, a map of heads, a loss shifted
    twice.
    """
    case = next(
        (
            each
            for each in finding.cases
            if each.cause.fault and verdict_of(each) is finding.verdict
        ),
        None,
    )
    if case is None:
        return finding if finding.verdict is not Verdict.FAIL else None
    found = Diagnosis(
        fault=case.cause.fault,
        how="reproduced",
        residual=case.cause.residual,
        advice=advice(case.cause.fault),
    )
    return replace(finding, diagnosis=found, location=_place_of(case))


def _place_of(case: Measurement) -> Location | None:
    module = case.cause.module
    return Location(module=module, layer=layer_number(module)) if module else None


def _placed(finding: Finding) -> Finding:
    """With the module that the failing case names itself, where the search has found no place."""
    cases = (
        case for case in finding.cases if case.cause.module and verdict_of(case) is finding.verdict
    )
    named = next(cases, None) if finding.location is None else None
    return finding if named is None else replace(finding, location=_place_of(named))


def _searched(subject: Subject, finding: Finding, until: float, known: tuple[str, ...]) -> Finding:
    """The first explanation that reproduces a case, else what heals one: with attention written
    out, then left to the model.
    """
    cases = failing(finding)
    weaker: list[Finding] = []
    for by_arguments in (False, True) if not subject.can.kernel else (False,):
        for case in (cases or _stand_ins(subject, finding))[: 1 if by_arguments else CASES]:
            others = [each for each in cases if each is not case]
            search = Search(open_case(subject, case, by_arguments), others, until, known)
            explained = _explained(search, finding)
            told = explained.diagnosis
            if told is not None and (told.how == "reproduced" or told.fault == OWN_STORE):
                return explained
            weaker.append(explained)
    repair = [
        each for each in weaker if each.diagnosis is not None and each.diagnosis.how == "repaired"
    ]
    return next(iter([*repair, *weaker]), None) or replace(finding, diagnosis=_unexplained(()))


def _explained(search: Search, finding: Finding) -> Finding:
    failure = search.failure
    place = locate(failure)
    diagnosis = _diagnosis(search, place)
    elsewhere = ELSEWHERE.get(diagnosis.fault)
    if elsewhere is not None and (place is None or diagnosis.fault != "padding-visible"):
        place = elsewhere(failure) or place
    place = search.with_source(place)
    return replace(
        finding,
        diagnosis=diagnosis,
        location=place,
        replay={**finding.replay, **replay_of(failure)},
    )


def _diagnosis(search: Search, place: Location | None) -> Diagnosis:
    failure = search.failure
    outside = _vouched(failure, explained_outside(failure))
    found = search.run(place.layer if place else None) if outside is None else None
    if found is not None:
        return _reproduced(search, found)
    outside = outside or _vouched(failure, carried_elsewhere(failure))
    if outside is not None:
        text = f"{outside.parameter[0].upper()}{outside.parameter[1:]}. {advice(outside.fault)}"
        return Diagnosis(
            fault=outside.fault, how="reproduced", residual=outside.residual, advice=text
        )
    repair, failed = repaired(failure)
    ruled_out = tuple(dict.fromkeys([*(each.hypothesis.fault for each in search.tried), *failed]))
    if repair is None:
        return _unexplained(ruled_out, search)
    return Diagnosis(
        fault=repair.name,
        how="repaired",
        residual=repair.residual,
        runner_up=_runner_up(search),
        advice=repair.advice,
        ruled_out=ruled_out,
    )


def _vouched(failure: Failure, outside: OutsideFault | None) -> OutsideFault | None:
    """Where attention is out of reach, the trusted path cannot vouch for it: only the location can
    rule it out.
    """
    if (
        outside is None
        or failure.trusted.out_of_reach is None
        or outside.fault != "leak-outside-attention"
    ):
        return outside
    place = ELSEWHERE[outside.fault](failure)
    return None if place is None or in_attention(place.module) else outside


def _reproduced(search: Search, found: TriedHypothesis) -> Diagnosis:
    guess = found.hypothesis
    text = advice(guess.fault)
    return Diagnosis(
        fault=guess.fault,
        how="reproduced",
        residual=found.residual,
        runner_up=_runner_up(search),
        advice=f"{guess.parameter[0].upper()}{guess.parameter[1:]}. {text}"
        if guess.parameter
        else text,
    )


def _runner_up(search: Search) -> Mapping[str, Any] | None:
    other = search.best_other
    return {"fault": other.hypothesis.label, "residual": other.residual} if other else None


def _unexplained(ruled_out: tuple[str, ...], search: Search | None = None) -> Diagnosis:
    text = "No fault of the catalogue gives these logits, and no change of the call heals them."
    near = search.near if search is not None else []
    if search is None or not near:
        return Diagnosis(fault="", how="unexplained", advice=text, ruled_out=ruled_out)
    text += f" The nearest, {near[0].hypothesis.label}, gives the first {near[0].agrees} positions exactly and not the others."
    return Diagnosis(
        fault="", how="unexplained", runner_up=_runner_up(search), advice=text, ruled_out=ruled_out
    )


def _stand_ins(subject: Subject, finding: Finding) -> list[Measurement]:
    """Where no failing case carries its passes: plain ones, each against the trusted path, if the
    fault shows there as well.
    """
    tokens, length = subject.inputs.tokens, subject.inputs.length
    third = length // 3
    chunks = (third, 1, 2, length - third - 3)
    rows = (*tokens, subject.inputs.other(subject.inputs.row, salt=3))
    spec = [
        ForwardSpec(tokens),
        ForwardSpec(tokens, chunks=chunks),
        ForwardSpec(rows, chunks=chunks),
        ForwardSpec(tokens, mask=all_ones(tokens)),
    ]
    cases = (unmeasured("a plain call", each, each) for each in spec)
    return [case for case in cases if _shows(subject, case)]


def _shows(subject: Subject, case: Measurement) -> bool:
    try:
        failure = open_case(subject, case)
        return bool(failure.wrong) or carried_elsewhere(failure) is not None
    except EXPECTED:
        return False


def replay_of(failure: Failure) -> dict[str, Any]:
    """What runs this case again: its name and both passes."""
    got, want = failure.sides
    told: dict[str, Any] = {"case": failure.case.name, "budget": failure.budget}
    if got.made is not None and not _by_hand(failure):
        return {**told, "made": got.made.how}
    return {**told, "got": spec_dict(got.spec), "want": spec_dict(want.spec)}


def _by_hand(failure: Failure) -> bool:
    """Whether the pass beside logits that were made in another way gives them as well."""
    got = failure.sides[0]
    try:
        return got.apart(failure.subject.logits(got.spec)) <= failure.budget
    except Unsupported:
        return False
