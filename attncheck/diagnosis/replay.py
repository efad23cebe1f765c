"""A recorded failure run again: the same two passes where it holds them, else the same probe.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from attncheck.core import registry
from attncheck.core.finding import Finding, Measurement, Verdict, verdict_of
from attncheck.core.ruling import describe
from attncheck.diagnosis.failure import Failure, open_case, unmeasured
from attncheck.diagnosis.recorded import spec_from_dict
from attncheck.model.subject import Subject


@final
@dataclass(frozen=True)
class Replayed:
    """Whether it still fails, and a sentence with the recorded number and the present one."""

    fails: bool
    text: str


def run_again(subject: Subject, finding: Finding) -> Replayed:
    """Run a finding's failing case again: by its probe, so that the same positions are compared,
    and by its passes.
    """
    case = _measured(subject, finding)
    before = next((each for each in finding.cases if each.name == case.name), None)
    fails = verdict_of(case) is Verdict.FAIL
    said = f"{case.name}: {describe(case)}"
    recorded = (
        f"recorded {before.max_abs:.3g}"
        if before is not None and before.max_abs is not None
        else "not recorded"
    )
    sides = _sides(subject, finding)
    return Replayed(
        fails, f"{'still fails' if fails else 'no longer fails'}: {said} ({recorded}){sides}"
    )


def _measured(subject: Subject, finding: Finding) -> Measurement:
    """The recorded case, or the worst one where no case was recorded."""
    wanted = finding.replay.get("case")
    measured: list[Measurement] = list(registry.load(finding.probe).measure(subject))
    named = [case for case in measured if case.name == wanted]
    broken = [case for case in measured if verdict_of(case) is Verdict.FAIL]
    return (named or sorted(broken, key=lambda case: -case.excess) or measured)[0]


def _sides(subject: Subject, finding: Finding) -> str:
    if "got" not in finding.replay:
        return ""
    spec = (spec_from_dict(finding.replay["got"]), spec_from_dict(finding.replay["want"]))
    failure: Failure = open_case(subject, unmeasured("recorded", *spec))
    words = [
        name
        for name, side in zip(("the call", "its yardstick"), failure.sides, strict=True)
        if side.wrong
    ]
    return f"; {' and '.join(words) or 'neither side'} differs from the trusted path"
