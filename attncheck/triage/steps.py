"""The single steps of a triage: each runs something on the model and leaves a `Step`, and a
`Finding` where it found a fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from attncheck.core import registry
from attncheck.core.errors import Unsupported
from attncheck.core.finding import (
    Finding,
    Measurement,
    Verdict,
)
from attncheck.core.ruling import describe
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.faults.catalogue import FAULTS
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of
from attncheck.triage import axes
from attncheck.triage.answer import Step
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

AXES = "axes"
PLANTED = (
    "position-restart",
    "cache-drops-token",
    "padding-visible",
    "mask-top-left",
    "rows-mixed",
    "softmax-scale",
)
POWERS = (32, 64, 128, 256)
LONGEST = 520


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


def tried(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], what: str, log: Log
) -> Finding | None:
    """Settings against the trusted path, until the first that fails; None where all hold."""
    started = time.perf_counter()
    cases: list[Measurement] = []
    for pattern in patterns:
        log.says(f"{what}: {pattern}")
        try:
            case = axes.decided(subject, material, pattern)
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


def control(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], log: Log
) -> None:
    """Plant one fault and ask the same patterns again: had there been a fault, they would have
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
                noticed = _noticed(subject, material, patterns)
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
    subject: Subject, material: Material, patterns: Sequence[CallPattern]
) -> Measurement | None:
    for pattern in patterns:
        try:
            case = axes.measure(subject, material, pattern)
        except (Unsupported, *REFUSALS):
            continue
        if axes.fails(case):
            return case
    return None


def lengths(subject: Subject, log: Log) -> Finding | None:
    """Ever longer rows, one past each power of two and each border of the config that the probes
    did not reach.

    A row in pieces on a cache, and its first half by itself, must give what one forward over it
    gives.
    """
    started = time.perf_counter()
    cases: list[Measurement] = []
    for length in _lengths(subject):
        log.says(f"{length} tokens")
        row = subject.inputs.fresh(length, salt=length)
        for name, spec in _of_length(subject, row):
            try:
                want_BTV = subject.logits(ForwardSpec((row,)))[:, : spec.length]
                cases.append(
                    subject.compare(
                        name, subject.logits(spec), want_BTV, spec=(spec, ForwardSpec((row,)))
                    )
                )
            except (Unsupported, *REFUSALS):
                continue
            if axes.fails(cases[-1]) and not cases[-1].in_doubt:
                log.add("lengths", Verdict.FAIL, f"{name}: {describe(cases[-1])}", started)
                return explained(subject, tuple(cases), log)
    if cases:
        words = f"{len(cases)} rows of up to {max(case.positions for case in cases)} tokens answer the same in pieces and cut short"
        log.add("lengths", Verdict.PASS, words, started)
    return None


def _lengths(subject: Subject) -> list[int]:
    context = subject.facts.context or LONGEST
    wanted = {size + 1 for size in POWERS} | {
        boundary.length + 3 for boundary in subject.inputs.unreached
    }
    return sorted(
        length for length in wanted if subject.inputs.length < length <= min(LONGEST, context)
    )


def _of_length(subject: Subject, row: Row) -> Iterator[tuple[str, ForwardSpec]]:
    half = len(row) // 2
    if subject.can.decodes:
        yield f"the first {half} of {len(row)} tokens by themselves", ForwardSpec((row[:half],))
        if subject.can.cache:
            yield (
                f"{len(row)} tokens in two pieces",
                ForwardSpec((row,), chunks=(half, len(row) - half)),
            )
