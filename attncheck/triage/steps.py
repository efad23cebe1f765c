"""The steps of a triage: each runs the model, logs a `Step`, and returns the fault that it found.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import Comparison
from attncheck.core.ruling import describe
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.diagnosis.failure import REFUSED
from attncheck.faults.registry import fault
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of
from attncheck.triage import axes
from attncheck.triage.answer import Step
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

AXES = "axes"
CONTROLS = (
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
    """The steps so far. `says` reports what runs now."""

    says: Callable[[str], None]
    steps: list[Step] = field(default_factory=list)
    diagnoser: Diagnoser = field(default_factory=Diagnoser)

    def add(self, name: str, verdict: Verdict, words: str) -> None:
        """Log one step."""
        self.steps.append(Step(name=name, verdict=verdict, words=words))


def probed(subject: Subject, name: str, log: Log) -> Finding:
    """One installed probe with its diagnosis."""
    log.says(name)
    finding = finding_of(subject, registry.load(name), log.diagnoser)
    log.add(name, finding.verdict, finding.summary)
    return finding


def called(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], what: str, log: Log
) -> Finding | None:
    """Call patterns against the plain forward, until the first that fails."""
    cases: list[Comparison] = []

    def measure(subject: Subject, material: Material, pattern: CallPattern) -> Comparison:
        log.says(f"{what}: {pattern}")
        return axes.decided(subject, material, pattern)

    for _, case in axes.measured(subject, material, patterns, measure):
        cases.append(case)
        if axes.fails(case):
            log.add(what, Verdict.FAIL, f"{case.name}: {describe(case)}")
            return _diagnosed(subject, tuple(cases), log)
    if not cases:
        log.add(what, Verdict.SKIP, "this model supports none of these call patterns")
        return None
    worst = max(cases, key=lambda case: case.excess)
    words = (
        f"{len(cases)} call patterns agree with the plain forward; the largest difference, "
        f"{worst.name}, is {worst.max_abs:.2g} where rounding explains {worst.budget:.1g}"
    )
    log.add(what, Verdict.PASS, words)
    return None


def _diagnosed(subject: Subject, cases: tuple[Comparison, ...], log: Log) -> Finding:
    log.says("which fault reproduces it")
    failing = next(case for case in cases if axes.fails(case))
    summary = f"{failing.name}: {describe(failing)}"
    finding = Finding(probe=AXES, verdict=Verdict.FAIL, summary=summary, cases=cases, seconds=5.0)
    return log.diagnoser(subject, finding)


def control(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], log: Log
) -> None:
    """Inject one fault and repeat the call patterns: an existing fault would have shown as well."""
    for name in CONTROLS:
        log.says(f"control: {name} injected")
        try:
            with fault(name).injected(subject):
                cases = (case for _, case in axes.measured(subject, material, patterns))
                noticed = next((case for case in cases if axes.fails(case)), None)
        except REFUSED:
            continue
        if noticed is not None:
            words = (
                f"with {name} injected, {noticed.name} moves the logits by {noticed.max_abs:.2g}: "
                "a fault would have shown"
            )
            log.add("control", Verdict.PASS, words)
            return
    words = "no injected fault was noticed: these call patterns prove nothing"
    log.add("control", Verdict.VACUOUS, words)


def lengths(subject: Subject, log: Log) -> Finding | None:
    """Ever longer sequences: in two chunks on a cache, and their first half alone.

    One length lies past each power of two and each boundary of the config that the probes did not
    reach: a window, a switch of the rotary table.
    """
    cases: list[Comparison] = []
    for length in _lengths(subject):
        log.says(f"{length} tokens")
        row = subject.inputs.fresh(length, salt=length)
        for name, spec in _of_length(subject, row):
            plain = ForwardSpec((row,))
            try:
                want_BTV = subject.logits(plain)[:, : spec.length]
                case = subject.compare(name, subject.logits(spec), want_BTV, spec=(spec, plain))
            except REFUSED:
                continue
            cases.append(case)
            if axes.fails(case) and not case.in_doubt:
                log.add("lengths", Verdict.FAIL, f"{name}: {describe(case)}")
                return _diagnosed(subject, tuple(cases), log)
    if cases:
        longest = max(case.positions for case in cases)
        words = f"{len(cases)} sequences of up to {longest} tokens agree in chunks and cut short"
        log.add("lengths", Verdict.PASS, words)
    return None


def _lengths(subject: Subject) -> list[int]:
    longest = min(LONGEST, subject.facts.context or LONGEST)
    wanted = {size + 1 for size in POWERS}
    wanted |= {boundary.length + 3 for boundary in subject.inputs.unreached}
    return sorted(length for length in wanted if subject.inputs.length < length <= longest)


def _of_length(subject: Subject, row: Row) -> Iterator[tuple[str, ForwardSpec]]:
    half = len(row) // 2
    if subject.can.decodes:
        yield f"the first {half} of {len(row)} tokens by themselves", ForwardSpec((row[:half],))
        if subject.can.cache:
            chunks = (half, len(row) - half)
            yield f"{len(row)} tokens in two pieces", ForwardSpec((row,), chunks=chunks)
