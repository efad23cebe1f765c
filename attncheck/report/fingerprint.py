"""What makes a finding the same finding in two runs: no numbers, no order, no noise.

A fingerprint holds the target, its attention implementation, the probe, the kind of the case and
the fault.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import final

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.report.model import TargetReport

NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:[+x×*]\d+(?:\.\d+)?)*")
UNEXPLAINED = ("", "unexplained")
HARMLESS = (Verdict.PASS, Verdict.SKIP)


@final
@dataclass(frozen=True, order=True, kw_only=True)
class Fingerprint:
    """One kind of case of one finding."""

    target: str
    attn: str
    probe: str
    verdict: str
    case: str
    fault: str = ""

    @property
    def digest(self) -> str:
        """A short form for tools that keep one word."""
        parts = (self.target, self.attn, self.probe, self.case, self.fault)
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]

    def same(self, later: Fingerprint) -> bool:
        """Whether the fingerprint of a later run is this one; a fault that was not yet diagnosed
        then makes no difference.
        """
        old = (self.target, self.attn, self.probe, self.verdict, self.case)
        new = (later.target, later.attn, later.probe, later.verdict, later.case)
        return old == new and self.fault in (later.fault, "")


def fingerprints(target: TargetReport, finding: Finding) -> tuple[Fingerprint, ...]:
    """A fingerprint for each kind of case that has the finding's verdict; none for a pass."""
    if finding.verdict in HARMLESS:
        return ()
    found = [
        Fingerprint(
            target=target.target,
            attn=str(target.settings.get("attn") or ""),
            probe=finding.probe,
            verdict=finding.verdict.value,
            case=kind,
            fault=_fault(finding),
        )
        for kind in _kinds(finding)
    ]
    return tuple(sorted(found))


def _fault(finding: Finding) -> str:
    """The fault without its parameters: `position-offset` of `position-offset (by -4)`."""
    found = finding.diagnosis.fault.partition(" (")[0] if finding.diagnosis is not None else ""
    return "" if found in UNEXPLAINED else found


def case_kind(name: str) -> str:
    """The name of a case without its numbers: `chunks 12+12, 2D mask` and `chunks 6+6+6+6, 2D mask`
    are one kind.
    """
    kept = re.sub(r"\b[24]D\b", lambda found: {"2D": "two-D", "4D": "four-D"}[found.group()], name)
    return NUMBERS.sub("#", kept).replace("two-D", "2D").replace("four-D", "4D")


def _kinds(finding: Finding) -> set[str]:
    if finding.verdict is Verdict.ERROR and finding.error:
        return {_raised(finding.error)}
    if finding.verdict is Verdict.VACUOUS:
        missed = {f"missed {each.fault}" for each in finding.controls if not each.detected}
        return missed or {"vacuous"}
    deciding = [case for case in finding.cases if verdict_of(case) is finding.verdict]
    return {case_kind(case.name) for case in deciding} or {""}


def _raised(traceback: str) -> str:
    """The type of error: the first line of the last traceback that is not indented."""
    _, _, last = traceback.rpartition("Traceback")
    lines = [line for line in last.split("\n")[1:] if line and not line.startswith(" ")]
    return lines[0].partition(":")[0] if lines else ""
