"""Run probes on a model, as a generator of events that knows none of its listeners."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from attncheck.core.choice import only
from attncheck.core.errors import ENDING, CallFailed, Unsupported, first_line
from attncheck.core.finding import DECIDED_IN, Control, Evidence, Finding, skipped_finding
from attncheck.core.measurement import (
    BrokenCall,
    following,
    low_only,
    not_measured,
    verdict_of,
)
from attncheck.core.verdict import Verdict
from attncheck.distributed.ranks import failed_alone, working_on
from attncheck.faults.registry import fault
from attncheck.model.kept_state import model_untouched
from attncheck.model.subject import Subject
from attncheck.model.weights import buffers_of, changed
from attncheck.probing import Probe
from attncheck.run.controls import control
from attncheck.run.escalation import decided

CONTROLS = 2
TRIED = 3
PASSING = frozenset({Verdict.PASS, Verdict.WARN, Verdict.NOISE})
WITHIN = frozenset({Verdict.PASS, Verdict.NOISE})


@final
@dataclass(frozen=True)
class ProbeStarted:
    """A probe begins on a target."""

    target: str
    probe: str


@final
@dataclass(frozen=True)
class ControlStarted:
    """A probe begins again with an injected fault."""

    target: str
    probe: str
    fault: str


@final
@dataclass(frozen=True)
class ProbeFinished:
    """A probe is finished."""

    target: str
    finding: Finding


@final
@dataclass(frozen=True)
class Backing:
    """The controls that back a pass: so many, these first. Each of the first ones was noticed by
    one question on other models: that one is asked alone, and where it misses the fault here, the
    next control is tried.
    """

    first: Mapping[str, str] = field(default_factory=dict)
    count: int = CONTROLS

    def of(self, probe: Probe) -> tuple[tuple[str, str | None], ...]:
        """The faults to inject, in order, with the question that is asked alone."""
        first = tuple(self.first.items())[:TRIED]
        own = tuple((name, None) for name in probe.controls)
        return (*first, *own) if self.count else ()


USUAL, NONE = Backing(), Backing(count=0)
Event = ProbeStarted | ControlStarted | ProbeFinished
Examination = Generator[Event, None, Finding]
Diagnose = Callable[[Subject, Finding], Finding]
Settle = Callable[[Subject, Probe, Finding], Finding]


def run_probes(
    subject: Subject,
    probes: Iterable[Probe],
    diagnose: Diagnose | None = None,
    backing: Backing = USUAL,
    traps: Settle | None = None,
) -> Iterator[Event]:
    """Every probe on one subject; a probe that raises becomes an `error` and the next one runs.

    `diagnose` gets every finding that failed or warned, and returns it with its diagnosis; it never
    raises. `backing` says which injected faults back a pass. `traps` sets aside the cases that warn
    of any model of this library.
    """
    causes: dict[str, str] = {}
    for probe in probes:
        yield ProbeStarted(subject.name, probe.name)
        working_on(f"the probe {probe.name}")
        started = time.perf_counter()
        try:
            with _as_loaded(subject), subject.loaded.casting_once():
                finding = yield from _examined(subject, probe, backing)
            finding = traps(subject, probe, finding) if traps else finding
            if diagnose is not None and finding.verdict in (Verdict.FAIL, Verdict.WARN):
                finding = replace(finding, seconds=time.perf_counter() - started)
                with model_untouched(subject.model):  # some models remember the picture before
                    finding = _diagnosed(subject, finding, diagnose)
        except Unsupported as reason:
            finding = not_examined(probe, reason)
        except ENDING:
            raise
        except BaseException as error:
            failed_alone(error)
            finding = crashed(probe.name, error)
        finding = _following(finding, causes)
        yield ProbeFinished(subject.name, replace(finding, seconds=time.perf_counter() - started))


def _diagnosed(subject: Subject, finding: Finding, diagnose: Diagnose) -> Finding:
    """Explain a finding in the precision that decided it; what only a lower one has, there."""
    broken = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    below = bool(broken) and all(map(low_only, broken))
    with subject.at(None if below else finding.replay.get(DECIDED_IN)) as view:
        return diagnose(view, finding)


@contextlib.contextmanager
def _as_loaded(subject: Subject) -> Iterator[None]:
    """A probe gets the model as it was loaded: what a forward leaves behind, such as the rotary
    table of a longer row, is for `repeatability` to find, and no leak in another probe.
    """
    buffers = buffers_of(subject.model)
    with model_untouched(subject.model):
        try:
            yield
        finally:
            if changed(subject.model, buffers):
                for each in (subject, *subject.views.values()):
                    each.passes.forget()


def _following(finding: Finding, causes: dict[str, str]) -> Finding:
    """The finding, its broken calls with the probe that met the same one first. `causes` maps what
    was seen so far to that probe.
    """
    cases = []
    for case in finding.cases:
        first = causes.setdefault(case.note, finding.probe) if isinstance(case, BrokenCall) else ""
        cases.append(case if first in ("", finding.probe) else following(case, first))
    return replace(finding, cases=tuple(cases))


def finding_of(subject: Subject, probe: Probe, diagnose: Diagnose | None = None) -> Finding:
    """The finding of one probe without its controls."""
    events = run_probes(subject, [probe], diagnose, NONE)
    return next(event.finding for event in events if isinstance(event, ProbeFinished))


def not_examined(probe: Probe, reason: Unsupported) -> Finding:
    """The finding of a probe that could not begin: a skip, or a failure where the model accepts a
    call and breaks on it.
    """
    if not isinstance(reason, CallFailed):
        return skipped_finding(probe.name, str(reason))
    cases = (not_measured(probe.title, reason),)
    ruling = probe.judge(Evidence(measurements=cases))
    return Finding(probe=probe.name, verdict=ruling.verdict, summary=ruling.summary, cases=cases)


def crashed(probe: str, error: BaseException) -> Finding:
    """The finding of a probe that raised."""
    text = "".join(traceback.format_exception(error))
    return Finding(
        probe=probe,
        verdict=Verdict.ERROR,
        summary=f"the probe raised {first_line(error)}",
        error=text,
    )


def _examined(subject: Subject, probe: Probe, backing: Backing) -> Examination:
    """Measure, again in a higher precision where rounding leaves a doubt, judge, and back a pass by
    controls.
    """
    reason = _missing(subject, probe)
    if reason is not None:
        return reason
    decision = decided(subject, probe)
    replay: dict[str, Any] = {"tokens": list(subject.inputs.row), "seed": subject.settings.seed}
    if decision.dtype is not None:
        replay[DECIDED_IN] = decision.dtype
    ruling = probe.judge(Evidence(measurements=decision.cases, replay=replay))
    finding = Finding(
        probe=probe.name,
        verdict=ruling.verdict,
        summary=ruling.summary,
        cases=decision.cases,
        replay=replay,
        skip_reason=ruling.summary if ruling.verdict is Verdict.SKIP else None,
    )
    if ruling.verdict not in PASSING:
        return finding
    if not any(case.judged and verdict_of(case) in WITHIN for case in decision.cases):
        return replace(finding, controls_missing="no case passed, so no control was run")
    with subject.at(decision.controls or _resolving(subject)) as decided_at:
        return (yield from _controlled(decided_at, probe, finding, backing))


def _resolving(subject: Subject) -> str | None:
    """The dtype for controls, where a budget as large as the logits would hide any fault: equal to
    the bit decides there, and an injected fault cannot show.
    """
    return None if subject.resolves else subject.higher_dtype()


def _missing(subject: Subject, probe: Probe) -> Finding | None:
    for need in probe.needs:
        capability = subject.capability(need)
        reason = capability.reason
        if not reason or capability.error is CallFailed:
            continue  # what breaks in one call need not break in every case
        if need == "sees_history":
            return Finding(probe=probe.name, verdict=Verdict.VACUOUS, summary=reason)
        return skipped_finding(probe.name, reason)
    return None


def _controlled(subject: Subject, probe: Probe, finding: Finding, backing: Backing) -> Examination:
    """Run the probe again with faults injected; one that goes unnoticed makes the pass vacuous."""
    controls: list[Control] = []
    reasons: list[str] = []
    faults = backing.of(probe)
    for name, question in faults:
        if len(controls) == backing.count:
            break
        yield ControlStarted(subject.name, probe.name, name)
        try:
            found = _control(subject, probe, name, finding, question)
            if found.detected or question is None:
                controls.append(found)
        except Unsupported as reason:
            reasons.append(f"{name}: {reason}")
    missed = [each.fault for each in controls if not each.detected]
    missing = "; ".join(dict.fromkeys(reasons)) if len(controls) < backing.count else ""
    finding = replace(finding, controls=tuple(controls), controls_missing=missing)
    if missed:
        return finding.with_verdict(
            Verdict.VACUOUS, f"with {', '.join(missed)} injected the probe passes as well"
        )
    if faults and not controls and finding.verdict is Verdict.PASS:
        return finding.with_verdict(
            Verdict.VACUOUS, f"no fault could be injected that would have failed it: {missing}"
        )
    return finding


def _control(
    subject: Subject, probe: Probe, name: str, finding: Finding, question: str | None
) -> Control:
    """One control, asked everything that the run asks, or one question alone."""
    with only(question) if question is not None else contextlib.nullcontext():
        return control(subject, probe, fault(name), finding.cases)
