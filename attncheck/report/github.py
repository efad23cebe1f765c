"""Annotations and the step summary of GitHub Actions, when a run happens there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from attncheck.core.finding import Finding, Verdict
from attncheck.report.markdown import markdown
from attncheck.report.model import Report
from attncheck.report.outcome import label, outcome, pairs

COMMANDS = {"failed": "error", "crashed": "error", "known": "notice", "held": "warning"}
# A step summary may hold 1 MiB; what is longer is refused as a whole.
MOST_BYTES = 1_000_000


def workflow_commands(report: Report) -> Iterator[str]:
    """One workflow command for each finding that did not pass, and for each target that could not
    be loaded.
    """
    for target in report.targets:
        if target.error is not None:
            yield _command("error", f"attncheck: {target.target}", target.error)
        for note in target.notes:
            if "expected to fail" in note:
                yield _command("warning", f"attncheck: {target.target}", note)
    for target, finding in pairs(report):
        came_to = outcome(report, finding)
        if came_to in COMMANDS and finding.verdict is not Verdict.PASS:
            yield _command(
                COMMANDS[came_to],
                f"{finding.probe} on {label(target)}: {finding.verdict.value}",
                _message(finding),
            )
    for note in report.notes:
        yield _command("notice", "attncheck", note)


def _message(finding: Finding) -> str:
    if finding.diagnosis is None:
        return finding.summary
    return f"{finding.summary}\n{finding.diagnosis.fault}: {finding.diagnosis.advice}"


def _command(name: str, title: str, message: str) -> str:
    return f"::{name} title={_escaped(title, ':,')}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def tell_github(report: Report, environment: Mapping[str, str] | None = None) -> list[str]:
    """Append the step summary where GitHub wants it, and return the annotations to print; nothing
    elsewhere.
    """
    variables = os.environ if environment is None else environment
    if variables.get("GITHUB_ACTIONS") != "true":
        return []
    summary = variables.get("GITHUB_STEP_SUMMARY")
    if summary:
        text = markdown(report).encode()[:MOST_BYTES].decode(errors="ignore")
        with Path(summary).open("a", encoding="utf-8") as out:
            out.write(text + "\n")
    return list(workflow_commands(report))
