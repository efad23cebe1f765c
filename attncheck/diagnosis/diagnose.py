"""From a failed finding to one that explains itself: the fault, its place, how to see it again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import ENDING, first_line
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import Measurement
from attncheck.diagnosis import claims, lost_numbers
from attncheck.diagnosis.claims import PROVEN, is_proven, named_by_the_probe, placed
from attncheck.diagnosis.failure import REFUSED, Failure, attns_of, failing, open_case
from attncheck.diagnosis.inside import leak_inside
from attncheck.diagnosis.kept import kept_between_calls, left_behind
from attncheck.diagnosis.locate import (
    attending,
    in_attention,
    locate,
    locate_leak,
    place_of_fault,
)
from attncheck.diagnosis.measured import Measured, measured, measured_alone
from attncheck.diagnosis.operations import Attempt
from attncheck.diagnosis.outside import (
    OutsideFault,
    carried_elsewhere,
    explained_outside,
    within_attention,
)
from attncheck.diagnosis.repair import repaired
from attncheck.diagnosis.replay import replay_of
from attncheck.diagnosis.repro import with_script
from attncheck.diagnosis.reproduce import Search
from attncheck.diagnosis.stand_ins import stand_ins
from attncheck.faults.registry import advice
from attncheck.model.kept_state import model_untouched
from attncheck.model.subject import Subject
from attncheck.model.switching import as_compared

SHARE = 0.75
"""The search for runners-up ends after this share of the failed probe's own time."""
CASES = 2
TRUSTED_TOO = ("dropout-active", "leak-outside-attention", "padding-visible", "rows-mixed")
"""Faults that show on the trusted path, as what a module keeps may."""
CAUSAL = "causal-mask-missing"
NO_FAULT = "No known fault gives these logits, and no change of the call fixes them."


@final
@dataclass
class Diagnoser:
    """Explains the findings of one run, and tries what it found on a model first on the next one.

    `repro` is the folder for scripts that show a failure without this tool.
    """

    repro: Path | None = None
    known: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, subject: Subject, finding: Finding) -> Finding:
        """The same finding with diagnosis, location and what replays it. Never raises."""
        found = self._explained(subject, finding)
        return found if self.repro is None else with_script(subject, found, self.repro)

    def _explained(self, subject: Subject, finding: Finding) -> Finding:
        named = named_by_the_probe(finding)
        if named is not None and not claims.is_a_guess(named):
            return _located(subject, named)
        until = time.perf_counter() + SHARE * finding.seconds
        known = self.known.get(id(subject), ())
        try:
            explained = lost_numbers.explained(subject, finding) or _best(
                subject, finding, named, until, known
            )
        except ENDING:
            raise
        except BaseException as error:  # the finding stands, whatever its search runs into
            text = f"The search for the fault ended early: {first_line(error)}"
            why = Diagnosis(fault="", how="unexplained", advice=text)
            return placed(replace(finding, diagnosis=why))
        if explained.diagnosis is not None and explained.diagnosis.how == "reproduced":
            self.known[id(subject)] = tuple(dict.fromkeys((explained.diagnosis.fault, *known)))
        return explained


def diagnose(subject: Subject, finding: Finding) -> Finding:
    """One finding explained by itself."""
    return Diagnoser()(subject, finding)


def _located(subject: Subject, finding: Finding) -> Finding:
    """The finding with the module where a failing case first differs, if it has no place."""
    cases = failing(finding) if finding.location is None else []
    if not cases:
        return finding
    try:
        with as_compared(subject, attns_of(cases[0])):
            return replace(finding, location=locate(open_case(subject, cases[0])))
    except REFUSED:
        return finding


def _best(
    subject: Subject, finding: Finding, named: Finding | None, until: float, known: tuple[str, ...]
) -> Finding:
    """What the failing cases show, or plain calls where those prove nothing. The name that a
    special call suggests stands only where no plainer call fails as well.
    """
    found: Finding | None = None
    history = named if claims.about_history(finding) else None
    plain = partial(claims.plain, finding, named)
    instead = partial(stand_ins, subject, finding)
    other_method = claims.about_another_method(subject, finding)
    for source in (plain,) if other_method else (plain, instead):
        if cases := source():
            explained = placed(_searched(subject, finding, until, known, cases))
            if source is not plain and claims.contradicted(explained, found):
                continue
            if is_proven(explained) and not claims.is_by_operation(explained):
                return claims.as_measured(claims.with_name(explained, history))
            found = found or explained
    if history is not None and not (found and is_proven(found)):
        return history
    found = found or named or placed(replace(finding, diagnosis=_unexplained(())))
    return claims.as_measured(claims.with_name(found, history))


def _searched(
    subject: Subject,
    finding: Finding,
    until: float,
    known: tuple[str, ...],
    cases: Sequence[Measurement],
) -> Finding:
    """The first fault that reproduces one of these cases, else the first repair that fixes one.

    The trusted path writes attention out; where the model has no kernel to replace, it is tried
    once more with attention left to the model. What none of them names is followed by operation.
    """
    tries: list[tuple[Measurement, Attempt]] = []
    for by_arguments in (False,) if subject.can.kernel else (False, True):
        for case in cases[: 1 if by_arguments else CASES]:
            others = [each for each in cases if each is not case]
            with as_compared(subject, attns_of(case)), model_untouched(subject.model):
                search = Search(open_case(subject, case, by_arguments), others, until, known)
                explain = partial(_explained, search, finding)
                tries.append((case, Attempt.of(search.failure, finding, explain)))
            if claims.settles(tries[-1][1].explained):
                return tries[-1][1].explained
    weaker: list[Finding] = []
    for case, attempt in tries:
        with as_compared(subject, attns_of(case)), model_untouched(subject.model):
            weaker.append(attempt.or_parted())
        if claims.settles(weaker[-1]):
            return weaker[-1]
    return min(weaker, key=lambda each: claims.rank(each.diagnosis))


def _explained(search: Search, finding: Finding) -> Finding:
    failure = search.failure
    place = locate(failure)
    outside = explained_outside(failure)
    inside = _inside(failure, outside)
    if inside is not None:
        again = {**finding.replay, **replay_of(failure)}
        return replace(finding, diagnosis=inside, location=locate_leak(failure), replay=again)
    seen = measured(failure) if outside is None else measured_alone(failure, outside.fault)
    both_ways = not failure.subject.can.decodes
    if seen is not None and both_ways and seen.diagnosis().fault == CAUSAL:
        seen = None  # what reads ahead by design was held against a causal mask
    if seen is not None and seen.proven:
        place = place or seen.place(failure.subject.model)
    diagnosis = _diagnosis(search, place, outside, seen)
    proven = seen is not None and seen.proven
    kept = (left_behind if proven else _kept)(failure, diagnosis)
    if kept is not None:
        diagnosis, place = kept
    if place is None and diagnosis.sentence and not diagnosis.fault:
        place = locate_leak(failure)
    place = place_of_fault(failure, diagnosis.fault, place)
    if place is not None and in_attention(place.module, attending(failure)):
        diagnosis = within_attention(failure, diagnosis, place)
    return replace(
        finding,
        diagnosis=diagnosis,
        location=seen.with_source(place) if seen is not None else place,
        replay={**finding.replay, **replay_of(failure)},
    )


def _diagnosis(
    search: Search, place: Location | None, outside: OutsideFault | None, seen: Measured | None
) -> Diagnosis:
    failure = search.failure
    if seen is not None and seen.proven:
        return _measured(search, seen, outside)
    found = search.run(place.layer if place else None) if outside is None else None
    if found is None and outside is None:
        outside = carried_elsewhere(failure)
        inside = _inside(failure, outside)
        if inside is not None:
            return inside
    if found is not None:
        guess, residual = found.hypothesis, found.residual
        diagnosis = _reproduced(guess.fault, guess.parameter, residual, _runner_up(search))
        diagnosis = claims.with_equals(diagnosis, search.equals)
    elif outside is not None:
        diagnosis = _reproduced(outside.fault, outside.parameter, outside.residual)
    elif seen is not None and seen.taken_over:
        diagnosis = _unexplained(search.ruled_out, search)
        diagnosis = replace(diagnosis, advice=seen.sentence)
    else:
        diagnosis = _repaired(search)
    return diagnosis if seen is None else seen.added_to(diagnosis)


def _measured(search: Search, seen: Measured, outside: OutsideFault | None) -> Diagnosis:
    """A proven observation, under the name of the fault that gives the same logits."""
    found = search.among(seen.groups)
    if found is None and outside is not None and not seen.diagnosis().fault:
        return seen.added_to(_reproduced(outside.fault, outside.parameter, outside.residual))
    if found is None:
        return seen.diagnosis()
    guess = found.hypothesis
    named = _reproduced(guess.fault, guess.parameter, found.residual, _runner_up(search))
    return claims.with_equals(seen.added_to(named), search.equals)


def _repaired(search: Search) -> Diagnosis:
    """The smallest repair that fixes the failing call, else nothing."""
    failure = search.failure
    repair, failed = repaired(failure)
    ruled_out = (*search.ruled_out, *failed)
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


def _kept(failure: Failure, found: Diagnosis) -> tuple[Diagnosis, Location] | None:
    """What a module kept between calls, unless a fault of this call is proven."""
    if found.how in PROVEN and found.fault not in TRUSTED_TOO:
        return None
    return kept_between_calls(failure)


def _inside(failure: Failure, outside: OutsideFault | None) -> Diagnosis | None:
    """What an attention module does wrong that carries later tokens to earlier positions; None
    where the leak is elsewhere.
    """
    if outside is None or outside.fault != "leak-outside-attention":
        return None
    place = locate_leak(failure)
    if place is None or not in_attention(place.module, attending(failure)):
        return None
    return leak_inside(failure, place)


def _reproduced(
    fault: str, parameter: str, residual: float, runner_up: Mapping[str, Any] | None = None
) -> Diagnosis:
    text = advice(fault)
    return Diagnosis(
        fault=fault,
        how="reproduced",
        residual=residual,
        runner_up=runner_up,
        advice=f"{parameter[0].upper()}{parameter[1:]}. {text}" if parameter else text,
    )


def _runner_up(search: Search) -> Mapping[str, Any] | None:
    other = search.best_other
    return {"fault": other.hypothesis.label, "residual": other.residual} if other else None


def _unexplained(ruled_out: tuple[str, ...], search: Search | None = None) -> Diagnosis:
    near = search.near if search is not None else []
    if search is None or not near:
        return Diagnosis(fault="", how="unexplained", advice=NO_FAULT, ruled_out=ruled_out)
    label, agrees = near[0].hypothesis.label, near[0].agrees
    text = f"The nearest, {label}, gives the first {agrees} positions exactly and not the others."
    return Diagnosis(
        fault="",
        how="unexplained",
        runner_up=_runner_up(search),
        advice=f"{NO_FAULT} {text}",
        ruled_out=ruled_out,
    )
