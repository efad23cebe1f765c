"""The steps of a triage: each runs the model, logs a `Step`, and returns the fault that it found.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core import registry
from attncheck.core.errors import AttncheckError, first_line
from attncheck.core.finding import Finding
from attncheck.core.measurement import Comparison, Measurement, verdict_of
from attncheck.core.ruling import describe
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.claims import is_proven
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.diagnosis.failure import REFUSED
from attncheck.faults.registry import fault
from attncheck.judge.layer_results import judge_forward
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of
from attncheck.targets.load import load
from attncheck.targets.target import DEFAULT
from attncheck.triage import axes
from attncheck.triage.answer import OWN, Question, Remark, Step
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.embedded_call import NAME as EMBEDS
from attncheck.triage.embedded_call import embedded
from attncheck.triage.encoder_call import reads_prompts
from attncheck.triage.expected import explained
from attncheck.triage.lengths import WAYS, LengthSweep, limit, long_row, swept
from attncheck.triage.material import Material
from attncheck.triage.own_call import OwnCall

AXES = "axes"
CONTROLS = (
    "position-restart",
    "cache-drops-token",
    "padding-visible",
    "mask-top-left",
    "rows-mixed",
    "softmax-scale",
)
LENGTHS = "lengths"
ANGLES = "angles in radians"
JUDGED = 1200
"""Attention of longer rows is not computed again: its scores grow with the square."""


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

    def passed(self, name: str) -> bool:
        """Whether a step of this name was run and passed."""
        return (name, Verdict.PASS) in ((step.name, step.verdict) for step in self.steps)


def probed(subject: Subject, name: str, log: Log) -> Finding:
    """One installed probe with its diagnosis."""
    log.says(name)
    finding = finding_of(subject, registry.load(name), log.diagnoser)
    log.add(name, finding.verdict, finding.summary)
    return finding


def of_the_library(subject: Subject, finding: Finding) -> bool:
    """Whether a probe fails under an unusual implementation on the healthy built-in model, too."""
    attn = subject.attn
    usual = attn is None or attn in axes.IMPLEMENTATIONS
    if usual or finding.verdict is not Verdict.FAIL or is_proven(finding):
        return False
    try:
        healthy = load(DEFAULT, Settings(attn=attn))
        return finding_of(healthy, registry.load(finding.probe)).verdict is Verdict.FAIL
    except (AttncheckError, *REFUSED):
        return False


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
            return diagnosed(subject, tuple(cases), log)
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


def diagnosed(subject: Subject, cases: tuple[Comparison, ...], log: Log) -> Finding:
    """The first failing case with the fault that explains it."""
    log.says("which fault reproduces it")
    failing = next(case for case in cases if axes.fails(case))
    summary = summary_of(failing)
    finding = Finding(probe=AXES, verdict=Verdict.FAIL, summary=summary, cases=cases, seconds=5.0)
    return log.diagnoser(subject, finding)


def narrowed(
    subject: Subject, finding: Finding, cases: tuple[Measurement, ...], log: Log
) -> Finding:
    """A finding on some of its cases alone, explained again."""
    if len(cases) == len(finding.cases):
        return finding
    failing = [each for each in cases if verdict_of(each) is Verdict.FAIL]
    more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    plain = replace(finding, cases=cases, diagnosis=None, location=None)
    return log.diagnoser(subject, replace(plain, summary=f"{summary_of(failing[0])}{more}"))


def summary_of(case: Measurement) -> str:
    """What a failing call shows."""
    return f"{case.name}: {describe(case)}"


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


def own(subject: Subject, call: OwnCall, log: Log) -> Finding | Remark | None:
    """The reporter's own call: a fault, a reason why it is as expected, or None where it agrees."""
    log.says(f"{OWN}: {call}")
    try:
        case = _settled(subject, call)
    except REFUSED as reason:
        log.add(OWN, Verdict.SKIP, first_line(reason))
        return None
    words = describe(case)
    if not axes.fails(case):
        explains = f"{case.max_abs:.2g}, rounding explains {case.budget:.1g}"
        log.add(OWN, Verdict.PASS, f"the largest difference is {explains}")
        return None
    remark = explained(subject, call, case)
    log.add(OWN, Verdict.FAIL if remark is None else Verdict.WARN, words)
    if remark is not None:
        return remark
    if reads_prompts(subject):  # no plain call of the decoder shows what its encoder does
        return Finding(probe=AXES, verdict=Verdict.FAIL, summary=summary_of(case), cases=(case,))
    return diagnosed(subject, (case,), log)


def embeds(
    subject: Subject, question: Question, material: Material, call: OwnCall | None, log: Log
) -> Finding | None:
    """The reporter's own call with embeddings in the place of ids, where they make such one."""
    if question.issue.embeds != "module":
        return None
    log.says(EMBEDS)
    pattern = call.pattern if call is not None else CallPattern(batch=1)
    try:
        found = embedded(subject, material, pattern)
    except REFUSED as reason:
        log.add(EMBEDS, Verdict.SKIP, first_line(reason))
        return None
    words = found.summary if found else "the logits are those of the ids"
    log.add(EMBEDS, Verdict.FAIL if found else Verdict.PASS, words)
    return found


def beyond(subject: Subject, dtype: str, case: Comparison, log: Log) -> Finding:
    """A case that differs beyond rounding in the finest precision, explained in it."""
    words = f"{case.name}: {describe(case)} in {dtype}, where rounding explains {case.budget:.1g}"
    log.add("beyond rounding", Verdict.FAIL, words)
    with subject.at(dtype) as view:
        return replace(diagnosed(view, (case,), log), summary=words)


def _settled(subject: Subject, call: OwnCall) -> Comparison:
    """The case of the call, in a higher precision where this one is in doubt."""
    case = call.case(subject)
    higher = subject.higher_dtype() if case.in_doubt else None
    if higher is None:
        return case
    try:
        with subject.at(higher) as view:
            return call.case(view)
    except REFUSED:
        return case


def lengths(
    subject: Subject, material: Material, spent: Callable[[], bool], log: Log
) -> Finding | None:
    """Every length that is affordable against one long forward, and that forward against its own
    attention computed from the config.
    """
    if not subject.can.decodes:
        log.add(LENGTHS, Verdict.SKIP, "later tokens change earlier logits: lengths differ anyway")
        return None
    own = max(material.rows, key=len) if material.own else ()
    sweep = LengthSweep(subject, long_row(subject, own), spent, log.says)
    broken = swept(sweep)
    if broken is not None:
        log.add(
            LENGTHS, Verdict.FAIL, f"{broken.rule}: {broken.case.name}: {describe(broken.case)}"
        )
        found = diagnosed(subject, (broken.case,), log)
        return replace(found, summary=f"{broken.rule} fail: {found.summary}")
    words = (
        f"{len(sweep.cases)} lengths up to {len(sweep.row)} tokens agree: {', '.join(WAYS)}"
        if sweep.cases
        else "no length could be compared"
    )
    log.add(LENGTHS, Verdict.PASS if sweep.cases else Verdict.SKIP, words)
    return _judged_long(subject, sweep.row[:JUDGED], log)


def _judged_long(subject: Subject, row: Row, log: Log) -> Finding | None:
    """The first length at which a layer no longer computes what the config says."""
    usual = subject.inputs.length
    if len(row) <= 2 * usual:
        return None
    if _as_stated(subject, row):
        return _rotated_late(subject, row, log)
    if not _as_stated(subject, row[:usual]):
        return None

    def wrong(length: int) -> bool:
        return not _as_stated(subject, row[:length])

    low, high = usual, len(row)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(middle) else (middle, high)
    inputs = replace(subject.inputs, row=row[: high + 1])
    finding = probed(subject.with_inputs(inputs), "reference", log)
    if finding.verdict is not Verdict.FAIL:
        return None
    return replace(finding, summary=f"{limit(subject, high)} fail: {finding.summary}")


def _rotated_late(subject: Subject, row: Row, log: Log) -> Finding | None:
    """A rotation that only a long row shows to be wrong; other cases gain nothing but rounding."""
    found = probed(subject.with_inputs(replace(subject.inputs, row=row)), "reference", log)
    turned = tuple(each for each in found.broken if getattr(each, "unit", "") == ANGLES)
    failing = any(verdict_of(each) is Verdict.FAIL for each in turned)
    return narrowed(subject, found, turned, log) if failing else None


def _as_stated(subject: Subject, row: Row) -> bool:
    """Whether every layer that can be judged on this row computes what the config says."""
    try:
        layers = judge_forward(subject, ForwardSpec((row,))).layers
    except REFUSED:
        return True
    return all(layer.passed for layer in layers)
