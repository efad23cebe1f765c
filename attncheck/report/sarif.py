"""The report as SARIF 2.1.0 for code scanning: a rule for each probe, a result for each finding
that did not pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attncheck.core.finding import Finding
from attncheck.core.measurement import Comparison
from attncheck.core.verdict import Verdict
from attncheck.report.fingerprint import fingerprints
from attncheck.report.model import Report, TargetReport
from attncheck.report.numbers import finite
from attncheck.report.table import finding_text

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"failed": "error", "crashed": "error", "known": "warning", "passed": "warning"}
TOOL = "attncheck"
MOST_CASES = 20


def sarif(report: Report) -> str:
    """The whole report as one SARIF log with one run."""
    rules = sorted({finding.probe for _, finding in report.findings})
    broken = [
        (target, finding)
        for target, finding in report.findings
        if report.outcome(finding) != "skipped" and finding.verdict is not Verdict.PASS
    ]
    driver = {"name": TOOL, "version": report.attncheck, "rules": [_rule(name) for name in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [_result(report, target, finding, rules) for target, finding in broken],
        "properties": {"environment": dict(report.environment), "summary": report.summary},
    }
    log = {"$schema": SCHEMA, "version": VERSION, "runs": [run]}
    return json.dumps(finite(log), indent=1, ensure_ascii=False)


def _rule(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": f"The probe `{name}` of attncheck."},
        "help": {"text": f"attncheck explain {name}"},
    }


def _invocation(report: Report) -> dict[str, Any]:
    errors = [target.error for target in report.targets if target.error is not None]
    stopped = [f"incomplete: {report.incomplete}"] if report.incomplete else []
    notes = [("error", error) for error in (*stopped, *errors)]
    notes += [("note", note) for note in report.notes]
    return {
        "executionSuccessful": not errors and report.exit_code in (0, 1),
        "exitCode": report.exit_code,
        "commandLine": report.command,
        "startTimeUtc": report.started,
        "toolExecutionNotifications": [
            {"level": level, "message": {"text": text}} for level, text in notes
        ],
    }


def _result(
    report: Report, target: TargetReport, finding: Finding, rules: list[str]
) -> dict[str, Any]:
    text = "\n\n".join([f"{target.label}: {finding.summary}", *finding.advice])
    shown = f"**{target.label}**\n\n```\n{finding_text(finding)}\n```"
    digests = (each.digest for each in fingerprints(target, finding)[:4])
    result: dict[str, Any] = {
        "ruleId": finding.probe,
        "ruleIndex": rules.index(finding.probe),
        "level": LEVELS[report.outcome(finding)],
        "kind": "fail",
        "message": {"text": text, "markdown": shown},
        "locations": [_location(target, finding)],
        "partialFingerprints": {"attncheck/v1": "+".join(digests)},
        "properties": {
            "verdict": finding.verdict.value,
            "target": target.target,
            "cases": _cases(finding),
        },
    }
    if finding.known is not None:
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": str(finding.known)}
        ]
    return result


def _location(target: TargetReport, finding: Finding) -> dict[str, Any]:
    """A file where the target is one, with the line of its factory; the module where the divergence
    starts, as a logical location.
    """
    module = finding.location.module if finding.location is not None else ""
    name = f"{target.target}:{module}" if module else target.target
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(_artifact(target.target), safe="/@.-_~")},
            "region": {"startLine": _line(target.target)},
        },
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "module"}],
    }


def _artifact(target: str) -> str:
    """`models/mine.py` of `models/mine.py:factory`; other targets as a path of words."""
    file, _, _ = target.rpartition(":")
    return file if file.endswith(".py") else target.replace(":", "/").lstrip("/")


def _line(target: str) -> int:
    """The line at which a factory of a file begins, 1 where there is none to be read."""
    file, _, factory = target.rpartition(":")
    try:
        source = Path(file).read_text(encoding="utf-8") if file.endswith(".py") else ""
    except (OSError, UnicodeDecodeError):
        return 1
    lines = enumerate(source.splitlines(), 1)
    begins = (f"def {factory}(", f"class {factory}(", f"class {factory}:", f"{factory} =")
    return next((number for number, line in lines if line.startswith(begins)), 1)


def _cases(finding: Finding) -> list[dict[str, Any]]:
    return [
        {
            "name": case.name,
            "max_abs": case.max_abs,
            "budget": case.budget if isinstance(case, Comparison) else None,
        }
        for case in finding.broken[:MOST_CASES]
    ]
