"""The single steps of a triage: each runs something on the model and leaves a `Step`, and a
`Finding` where it found a fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from attncheck.attention.layers import layer_number
from attncheck.core import registry
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.finding import (
    Diagnosis,
    Finding,
    Location,
    Measurement,
    Verdict,
    verdict_of,
)
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.faults.catalogue import FAULTS
from attncheck.model.forward_spec import ForwardSpec, Mask4D
from attncheck.model.loss import ACCUMULATING
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.probing import describe
from attncheck.run.runner import finding_of
from attncheck.triage import axes
from attncheck.triage.answer import Remark, Step
from attncheck.triage.material import Material
from attncheck.triage.scan import Overflow, overflow
from attncheck.triage.setting import Setting

AXES = "axes"
PLANTED = (
    "position-restart",
    "cache-drops-token",
    "padding-visible",
    "mask-top-left",
    "rows-mixed",
    "softmax-scale",
)


@final
@dataclass
class Log:
    """What was tried so far. `says` shows what runs now."""

    says: Callable[[str], None]
    steps: list[Step] = field(default_factory=list)
    diagnoser: Diagnoser = field(default_factory=Diagnoser)

    def add(self, name: str, verdict: Verdict, words: str, started: float) -> None:
        """Write down one step."""
        self.steps.append(
            Step(name=name, verdict=verdict, words=words, seconds=time.perf_counter() - started)
        )


def probed(subject: Subject, name: str, log: Log) -> Finding:
    """One installed probe with its diagnosis."""
    log.says(name)
    started = time.perf_counter()
    finding = finding_of(subject, registry.load(name), log.diagnoser)
    log.add(name, finding.verdict, finding.summary, started)
    return finding


def scanned(subject: Subject, material: Material, dtype: str, log: Log) -> Finding | None:
    """The scan for values that are not finite, in the reporter's precision."""
    log.says("values that are not finite")
    started = time.perf_counter()
    try:
        with subject.at(dtype):
            found = overflow(subject, material.rows)
    except (Unsupported, *REFUSALS) as reason:
        log.add("finite values", Verdict.SKIP, f"{dtype}: {first_line(reason)}", started)
        return None
    if found is None:
        log.add(
            "finite values",
            Verdict.PASS,
            f"every value of a plain forward is finite in {dtype}",
            started,
        )
        return None
    log.add("finite values", Verdict.FAIL, found.words, started)
    return _overflow(found)


def _overflow(found: Overflow) -> Finding:
    case = Measurement(
        name=f"one plain forward in {found.dtype}",
        expect="at-most",
        value=float(found.lost),
        limit=0.0,
        unit="values that are not finite",
        positions=1,
        nonfinite=found.lost,
        module=found.module,
    )
    advice = f"Run it in bfloat16 or float32, which reach further than {found.dtype}, or keep this module in float32."
    return Finding(
        probe="finite-values",
        verdict=Verdict.FAIL,
        summary=found.words,
        cases=(case,),
        diagnosis=Diagnosis(fault="overflow", how="reproduced", residual=0.0, advice=advice),
        location=Location(module=found.module, layer=layer_number(found.module)),
    )


def spec(
    subject: Subject, material: Material, settings: Sequence[Setting], what: str, log: Log
) -> Finding | None:
    """Settings against the trusted path, until the first that fails; None where all hold."""
    started = time.perf_counter()
    cases: list[Measurement] = []
    for setting in settings:
        log.says(f"{what}: {setting}")
        try:
            case = axes.decided(subject, material, setting)
        except (Unsupported, *REFUSALS):
            continue
        cases.append(case)
        if axes.fails(case):
            log.add(what, Verdict.FAIL, f"{case.name}: {describe(case)}", started)
            return explained(subject, tuple(cases), log)
    if not cases:
        log.add(what, Verdict.SKIP, "this model can be asked in none of these ways", started)
    else:
        worst = max(cases, key=lambda case: case.excess)
        words = f"{len(cases)} ways of asking agree with the plain forward; the farthest, {worst.name}, by {worst.max_abs:.2g}"
        log.add(what, Verdict.PASS, f"{words} where rounding explains {worst.budget:.1g}", started)
    return None


def explained(subject: Subject, cases: tuple[Measurement, ...], log: Log) -> Finding:
    """A finding of failing axes, diagnosed and located."""
    log.says("which fault reproduces it")
    failing = next(case for case in cases if axes.fails(case))
    summary = f"{failing.name}: {describe(failing)}"
    finding = Finding(probe=AXES, verdict=Verdict.FAIL, summary=summary, cases=cases, seconds=5.0)
    return log.diagnoser(subject, finding)


def compiled(subject: Subject, material: Material, log: Log) -> Finding | None:
    """The compiled model against the plain one, in float32: compilers do not take hidden float32
    away.
    """
    log.says("compiling")
    started = time.perf_counter()
    row, name = material.rows[0], "the compiled model"
    try:
        with subject.at("float32"), torch.no_grad():
            want_BTV = subject.logits(ForwardSpec((row,)))
            arguments = subject.forward_adapter.arguments(
                subject.passes.ids((row,)), use_cache=False
            )
            case = subject.compare(name, torch.compile(subject.model)(**arguments).logits, want_BTV)
    except Exception as error:  # compilers raise errors of their own kinds
        log.add(name, Verdict.SKIP, first_line(error), started)
        return None
    broken = verdict_of(case) is Verdict.FAIL and not case.in_doubt
    log.add(name, Verdict.FAIL if broken else Verdict.PASS, describe(case), started)
    return (
        Finding(probe="compiled", verdict=Verdict.FAIL, summary=describe(case), cases=(case,))
        if broken
        else None
    )


def control(subject: Subject, material: Material, settings: Sequence[Setting], log: Log) -> None:
    """Plant one fault and ask the same settings again: had there been a fault, they would have
    shown it.
    """
    started = time.perf_counter()
    for name in PLANTED:
        log.says(f"{name} planted")
        try:
            with (
                FAULTS[name].inject(subject),
                subject.passes.under(name, FAULTS[name].on_cache_only),
            ):
                noticed = _noticed(subject, material, settings)
        except (Unsupported, *REFUSALS):
            continue
        if noticed is not None:
            words = f"with {name} planted, {noticed.name} moves the logits by {noticed.max_abs:.2g}: a fault would have shown"
            log.add("control", Verdict.PASS, words, started)
            return
    log.add(
        "control",
        Verdict.VACUOUS,
        "no planted fault was noticed: these ways of asking prove nothing",
        started,
    )


def _noticed(
    subject: Subject, material: Material, settings: Sequence[Setting]
) -> Measurement | None:
    for setting in settings:
        try:
            case = axes.measure(subject, material, setting)
        except (Unsupported, *REFUSALS):
            continue
        if axes.fails(case):
            return case
    return None


def trapped(subject: Subject, finding: Finding, reported: str) -> Remark | None:
    """The warnings of a finding that the reporter can run into: those that their own precision
    shows as well.

    A loss that accumulation steps change is no trap: it is held against one batch in a step of its
    own.
    """
    warned = {
        case.name: case
        for case in finding.cases
        if verdict_of(case) is Verdict.WARN and case.name not in ACCUMULATING
    }
    if not warned:
        return None
    probe = registry.load(finding.probe)
    try:
        with subject.at(reported):
            own = {case.name: case for case in probe.measure(subject) if case.name in warned}
    except (Unsupported, *REFUSALS):
        own = warned
    met = [case for name, case in warned.items() if name in own and _met(own[name])]
    return _trap(finding, met) if met else None


def _trap(finding: Finding, met: list[Measurement]) -> Remark:
    """What the trap is, what else moves because nothing asks it not to, and which calls do what
    they seem to.
    """
    shown = [case for case in finding.cases if case.expect == "figure" and case.max_abs]
    moved = "; ".join(f"{case.name}: {describe(case)}" for case in [*met, *shown])
    held = "; ".join(
        case.name for case in finding.cases if case.judged and verdict_of(case) is Verdict.PASS
    )
    title = f"these calls ask for something else than they seem to: {', '.join(case.name for case in met)}"
    return Remark(
        title=title, words=moved + (f". What holds: {held}." if held else "."), decides=True
    )


def _met(case: Measurement) -> bool:
    return case.expect != "skip" and (verdict_of(case) is not Verdict.PASS or not case.resolved)


def by_the_way(finding: Finding) -> bool:
    """Whether all that fails is a call that only somebody who writes masks as booleans makes: it
    explains no other report.
    """
    failing = [case for case in finding.cases if verdict_of(case) is Verdict.FAIL]
    masks = [case.spec[0].mask if case.spec else None for case in failing]
    return bool(failing) and all(isinstance(mask, Mask4D) and mask.boolean for mask in masks)
