"""Run probes on a model, as a generator of events that knows none of its listeners."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from attncheck.core.allocator import return_freed_memory
from attncheck.core.divergence import PrecisionLevel
from attncheck.core.errors import CallFailed, CannotInject, Unsupported, first_line
from attncheck.core.finding import Control, Evidence, Finding, skipped_finding
from attncheck.core.measurement import (
    BrokenCall,
    Comparison,
    Measurement,
    Quantity,
    not_measured,
    verdict_of,
)
from attncheck.core.verdict import Verdict, worst
from attncheck.distributed.ranks import failed_alone, gathered, working_on
from attncheck.faults.engine.fault import Fault
from attncheck.faults.registry import fault
from attncheck.model.subject import Subject
from attncheck.probing import Probe

CONTROLS = 2
MUCH_WORSE = 1.5
LOWER = "float32"
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


Event = ProbeStarted | ControlStarted | ProbeFinished
Examination = Generator[Event, None, Finding]
Diagnose = Callable[[Subject, Finding], Finding]


def run_probes(
    subject: Subject,
    probes: Iterable[Probe],
    diagnose: Diagnose | None = None,
    controls: bool = True,
) -> Iterator[Event]:
    """Every probe on one subject; a probe that raises becomes an `error` and the next one runs.

    `diagnose` gets every finding that failed or warned, and returns it with its diagnosis; it never
    raises. Without `controls` a pass is not backed by injected faults.
    """
    causes: dict[str, str] = {}
    for probe in probes:
        yield ProbeStarted(subject.name, probe.name)
        working_on(f"the probe {probe.name}")
        started = time.perf_counter()
        try:
            finding = yield from _examined(subject, probe, controls)
            if diagnose is not None and finding.verdict in (Verdict.FAIL, Verdict.WARN):
                finding = diagnose(subject, replace(finding, seconds=time.perf_counter() - started))
        except Unsupported as reason:
            finding = not_examined(probe, reason)
        except Exception as error:
            failed_alone(error)
            finding = crashed(probe.name, error)
        finding = _following(finding, causes)
        yield ProbeFinished(subject.name, replace(finding, seconds=time.perf_counter() - started))


def _following(finding: Finding, causes: dict[str, str]) -> Finding:
    """The finding, its broken calls with the probe that met the same one first. `causes` maps what
    was seen so far to that probe.
    """
    cases = []
    for case in finding.cases:
        first = causes.setdefault(case.note, finding.probe) if isinstance(case, BrokenCall) else ""
        follows = first not in ("", finding.probe)
        note = f"{case.note}; follows from `{first}`" if follows else case.note
        cases.append(replace(case, note=note))
    return replace(finding, cases=tuple(cases))


def finding_of(subject: Subject, probe: Probe, diagnose: Diagnose | None = None) -> Finding:
    """The finding of one probe without its controls."""
    events = run_probes(subject, [probe], diagnose, controls=False)
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


def crashed(probe: str, error: Exception) -> Finding:
    """The finding of a probe that raised."""
    text = "".join(traceback.format_exception(error))
    return Finding(
        probe=probe,
        verdict=Verdict.ERROR,
        summary=f"the probe raised {first_line(error)}",
        error=text,
    )


def _examined(subject: Subject, probe: Probe, controls: bool) -> Examination:
    """Measure, again in a higher precision where rounding leaves a doubt, judge, and back a pass by
    controls.
    """
    reason = _missing(subject, probe)
    if reason is not None:
        return reason
    measured = _settled(subject, probe, _all_measured(probe, subject))
    decided, dtype = _escalated(subject, probe, measured)
    replay = {"tokens": list(subject.inputs.row), "seed": subject.settings.seed}
    ruling = probe.judge(Evidence(measurements=decided, replay=replay))
    finding = Finding(
        probe=probe.name,
        verdict=ruling.verdict,
        summary=ruling.summary,
        cases=decided,
        replay=replay,
        skip_reason=ruling.summary if ruling.verdict is Verdict.SKIP else None,
    )
    if ruling.verdict not in PASSING:
        return finding
    if not any(case.judged and verdict_of(case) in WITHIN for case in decided):
        return replace(finding, controls_missing="no case passed, so no control was run")
    with subject.at(dtype) as decided_at:
        faults = probe.controls if controls else ()
        return (yield from _controlled(decided_at, probe, finding, faults))


def _measured(probe: Probe, subject: Subject) -> Iterator[Measurement]:
    """The cases of a probe; where processes share the model, each from the process where it is
    worst.
    """
    for case in probe.measure(subject):
        yield _worst(gathered(f"the cases of {probe.name}", case))


def _all_measured(probe: Probe, subject: Subject) -> tuple[Measurement, ...]:
    """Every case; where the probe cannot go on, the cases before that stay, with the reason."""
    found: list[Measurement] = []
    try:
        for case in _measured(probe, subject):
            found.append(case)
    except Unsupported as reason:
        if not found:
            raise
        found.append(not_measured("the cases behind these", reason))
    return tuple(found)


def _settled(
    subject: Subject, probe: Probe, measured: tuple[Measurement, ...]
) -> tuple[Measurement, ...]:
    """Measure again in float32 what float64 broke on: not every kernel takes float64."""
    broken = {case.name for case in measured if isinstance(case, BrokenCall)}
    if not broken or subject.dtype_name != "float64" or subject.passes.injected:
        return measured
    with subject.at(LOWER) as lower:
        try:
            cases = {case.name: case for case in _all_measured(probe, lower)}
        except Unsupported:
            return measured
    return tuple(cases.get(case.name, case) if case.name in broken else case for case in measured)


def _worst(cases: Sequence[Measurement]) -> Measurement:
    order = [verdict_of(case) for case in cases]
    rank = order.index(worst(order))
    found = cases[rank]
    return replace(found, note=f"{found.note} (rank {rank})".strip()) if rank else found


def _missing(subject: Subject, probe: Probe) -> Finding | None:
    for need in probe.needs:
        capability = subject.capability(need)
        reason = capability.reason
        if not reason:
            continue
        if need == "sees_history":
            return Finding(probe=probe.name, verdict=Verdict.VACUOUS, summary=reason)
        capability.require()
    return None


def _escalated(
    subject: Subject, probe: Probe, measured: tuple[Measurement, ...]
) -> tuple[tuple[Measurement, ...], str | None]:
    """Measure doubtful cases again in the highest precision that fits; each case keeps both
    levels.
    """
    doubtful = {case.name for case in measured if case.in_doubt}
    dtype = subject.higher_dtype() if doubtful else None
    if dtype is None:
        return measured, None
    try:
        with subject.at(dtype) as higher:
            raised = {case.name: case for case in _measured(probe, higher) if case.name in doubtful}
    except (Unsupported, RuntimeError, NotImplementedError, TypeError):
        # A kernel refuses the higher precision: the verdict says that nothing decided.
        return measured, None
    low = subject.dtype_name
    return tuple(_with_levels(each, raised.get(each.name), low, dtype) for each in measured), dtype


def _with_levels(case: Measurement, raised: Measurement | None, low: str, high: str) -> Measurement:
    if not (isinstance(case, Comparison) and isinstance(raised, Comparison)):
        return case
    levels = tuple(
        PrecisionLevel(dtype=dtype, max_abs=each.max_abs, budget=each.budget)
        for dtype, each in ((low, case), (high, raised))
    )
    return replace(case, ladder=levels)


def _controlled(
    subject: Subject, probe: Probe, finding: Finding, faults: Sequence[str]
) -> Examination:
    """Run the probe again with faults injected; one that goes unnoticed makes the pass vacuous."""
    controls: list[Control] = []
    reasons: list[str] = []
    for name in faults:
        if len(controls) == CONTROLS:
            break
        yield ControlStarted(subject.name, probe.name, name)
        try:
            controls.append(_control(subject, probe, fault(name), finding.cases))
        except Unsupported as reason:
            reasons.append(f"{name}: {reason}")
    missed = [control.fault for control in controls if not control.detected]
    missing = "; ".join(reasons) if len(controls) < CONTROLS else ""
    finding = replace(finding, controls=tuple(controls), controls_missing=missing)
    if missed:
        return finding.with_verdict(
            Verdict.VACUOUS, f"with {', '.join(missed)} injected the probe passes as well"
        )
    return finding


def _control(
    subject: Subject, probe: Probe, fault: Fault, healthy: tuple[Measurement, ...]
) -> Control:
    """Whether the probe notices one injected fault; it stops at the first case that the fault
    breaks.

    Raises:
        CannotInject: the model has no place for the fault, or raises with it injected.
    """
    return_freed_memory()
    before = {case.name: case for case in healthy}
    largest: float | None = None
    raised = ""
    with fault.injected(subject):
        try:
            for case in _measured(probe, subject):
                if case.max_abs is not None:
                    largest = max(largest or 0.0, case.max_abs)
                if isinstance(case, BrokenCall) and not isinstance(
                    before.get(case.name), BrokenCall
                ):
                    raised = raised or case.note
                if noticed(case, before.get(case.name)):
                    return Control(
                        fault=fault.name, detected=True, max_abs=case.max_abs, case=case.name
                    )
        except Unsupported as reason:
            raise CannotInject(str(reason)) from reason
        except Exception as error:
            raise CannotInject(
                f"the model raises with it injected ({first_line(error)})"
            ) from error
    if raised:
        raise CannotInject(f"the model raises with it injected ({raised})")
    return Control(fault=fault.name, detected=False, max_abs=largest)


def noticed(case: Measurement, healthy: Measurement | None) -> bool:
    """Whether a case comes out worse with the fault than without it."""
    now, before = verdict_of(case), verdict_of(healthy) if healthy is not None else Verdict.PASS
    if now not in (Verdict.FAIL, Verdict.WARN) or isinstance(case, BrokenCall):
        return False  # a model that raises under a fault shows nothing of it
    if before not in (Verdict.FAIL, Verdict.WARN):
        return True
    if now is Verdict.FAIL and before is Verdict.WARN:
        return True
    return (
        isinstance(case, Quantity)
        and isinstance(healthy, Quantity)
        and case.value > MUCH_WORSE * healthy.value
    )
