"""What renderers ask of a report: what a finding counts as, what a target is called, a finding as
plain text.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Literal

from rich.console import Console

from attncheck.core.finding import Finding, Verdict
from attncheck.report import table
from attncheck.report.model import Report, TargetReport

Outcome = Literal["failed", "crashed", "known", "skipped", "held"]
SHOWN_SETTINGS = ("attn", "dtype", "device", "cache")
WIDTH = 100


def outcome(report: Report, finding: Finding) -> Outcome:
    """What a finding means for the run: `failed` and `crashed` turn it red."""
    if finding.verdict is Verdict.SKIP and "skip" not in report.fail_on:
        return "skipped"
    if finding.verdict is Verdict.PASS:
        return "held"
    if finding.known is not None:
        return "known"
    if finding.verdict is Verdict.FAIL or finding.verdict.value in report.fail_on:
        return "failed"
    return "crashed" if finding.verdict is Verdict.ERROR else "held"


def pairs(report: Report) -> Iterator[tuple[TargetReport, Finding]]:
    """Every finding with its target."""
    for target in report.targets:
        for finding in target.results:
            yield target, finding


def label(target: TargetReport) -> str:
    """`builtin:gqa (sdpa, float64, cpu)`: a target and how it was asked."""
    spec = target.settings.get("asked") or {}
    values = [target.settings.get(name) or spec.get(name) for name in SHOWN_SETTINGS]
    shown = ", ".join(str(value) for value in values if value not in (None, "", "auto"))
    return f"{target.target} ({shown})" if shown else target.target


def finding_text(finding: Finding, width: int = WIDTH) -> str:
    """A finding as the terminal shows it, without colour."""
    out = Console(
        file=io.StringIO(), width=width, no_color=True, highlight=False, emoji=False, markup=False
    )
    for block in table.finding_block(finding):
        out.print(block)
    assert isinstance(out.file, io.StringIO)
    return "\n".join(line.rstrip() for line in out.file.getvalue().rstrip().splitlines())


def failures_text(report: Report) -> str:
    """Everything that turned a run red, as tables; the reasons for skipping where nothing ran."""
    lines = [
        f"{target.target}: {target.error}" for target in report.targets if target.error is not None
    ]
    for target, finding in pairs(report):
        if outcome(report, finding) in ("failed", "crashed"):
            lines.append(f"{label(target)}\n{finding_text(finding)}")
            lines += [finding.error.rstrip()] if finding.error else []
    if not lines:
        reasons = dict.fromkeys(
            f"{finding.probe}: {finding.skip_reason}"
            for _, finding in pairs(report)
            if finding.skip_reason
        )
        lines = ["nothing ran", *reasons]
    return "\n\n".join(lines)
