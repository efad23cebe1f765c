"""Annotations and the step summary of GitHub Actions, when a run happens there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from attncheck.core.verdict import Verdict
from attncheck.report.markdown import markdown
from attncheck.report.model import Report

COMMANDS = {"failed": "error", "crashed": "error", "known": "notice", "passed": "warning"}
# GitHub refuses a step summary of more than 1 MiB as a whole.
MOST_BYTES = 1_000_000


def workflow_commands(report: Report) -> Iterator[str]:
    """One workflow command for each finding that did not pass, and for each target that could not
    be loaded.
    """
    if report.incomplete:
        yield _command("error", "attncheck", f"incomplete: {report.incomplete}")
    for target in report.targets:
        title = f"attncheck: {target.target}"
        if target.error is not None:
            yield _command("error", title, target.error)
        for note in target.notes:
            if "expected to fail" in note:
                yield _command("warning", title, note)
    for target, finding in report.findings:
        name = COMMANDS.get(report.outcome(finding))
        if name and finding.verdict is not Verdict.PASS:
            title = f"{finding.probe} on {target.label}: {finding.verdict.value}"
            yield _command(name, title, "\n".join([finding.summary, *finding.advice]))
    for note in report.notes:
        yield _command("notice", "attncheck", note)


def _command(name: str, title: str, message: str) -> str:
    return f"::{name} title={_escaped(title, ':,')}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def tell_github(report: Report, environment: Mapping[str, str] | None = None) -> list[str]:
    """Append the step summary to the file that GitHub names, and return the annotations to print;
    nothing elsewhere. A summary that cannot be written is said in one line.
    """
    variables = os.environ if environment is None else environment
    if variables.get("GITHUB_ACTIONS") != "true":
        return []
    summary = variables.get("GITHUB_STEP_SUMMARY")
    if summary:
        text = markdown(report).encode()[:MOST_BYTES].decode(errors="ignore")
        try:
            with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as out:
                out.write(text + "\n")
        except OSError as error:
            line = f"attncheck: step summary {summary}: not written: {error.strerror}"
            return [line, *workflow_commands(report)]
    return list(workflow_commands(report))
