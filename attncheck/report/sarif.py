"""The report as SARIF 2.1.0 for code scanning: a rule for each probe, a result for each finding
that did not pass.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from attncheck.core.finding import Comparison, Finding, Verdict, verdict_of
from attncheck.report.fingerprint import prints
from attncheck.report.model import Report, TargetReport
from attncheck.report.outcome import finding_text, label, outcome, pairs
from attncheck.report.record import finite

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"failed": "error", "crashed": "error", "known": "warning", "held": "warning"}
TOOL = "attncheck"
MOST_CASES = 20


def sarif(report: Report) -> str:
    """The whole report as one SARIF log with one run."""
    found = [
        (target, finding)
        for target, finding in pairs(report)
        if outcome(report, finding) != "skipped"
    ]
    broken = [(target, finding) for target, finding in found if finding.verdict is not Verdict.PASS]
    rules = sorted({finding.probe for _, finding in pairs(report)})
    run = {
        "tool": {
            "driver": {
                "name": TOOL,
                "version": report.attncheck,
                "rules": [_rule(name) for name in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [_result(report, target, finding, rules) for target, finding in broken],
        "properties": {"environment": dict(report.environment), "summary": report.summary},
    }
    return json.dumps(
        finite({"$schema": SCHEMA, "version": VERSION, "runs": [run]}), indent=1, ensure_ascii=False
    )


def _rule(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": f"The probe `{name}` of attncheck."},
        "help": {"text": f"attncheck explain {name}"},
    }


def _invocation(report: Report) -> dict[str, Any]:
    not_loaded = [target.error for target in report.targets if target.error is not None]
    return {
        "executionSuccessful": not not_loaded and report.exit_code in (0, 1),
        "exitCode": report.exit_code,
        "commandLine": report.command,
        "startTimeUtc": report.started,
        "toolExecutionNotifications": [
            {"level": "error", "message": {"text": str(error)}} for error in not_loaded
        ]
        + [{"level": "note", "message": {"text": note}} for note in report.notes],
    }


def _result(
    report: Report, target: TargetReport, finding: Finding, rules: list[str]
) -> dict[str, Any]:
    diagnosis = finding.diagnosis
    advice = f"\n\n{diagnosis.fault}: {diagnosis.advice}" if diagnosis is not None else ""
    result: dict[str, Any] = {
        "ruleId": finding.probe,
        "ruleIndex": rules.index(finding.probe),
        "level": LEVELS[outcome(report, finding)],
        "kind": "fail",
        "message": {
            "text": f"{label(target)}: {finding.summary}{advice}",
            "markdown": _markdown(target, finding),
        },
        "locations": [_location(target, finding)],
        "partialFingerprints": {"attncheck/v1": _fingerprint(target, finding)},
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


def _markdown(target: TargetReport, finding: Finding) -> str:
    return f"**{label(target)}**\n\n```\n{finding_text(finding)}\n```"


def _location(target: TargetReport, finding: Finding) -> dict[str, Any]:
    """A file where the target is one; the module where the divergence starts, as a logical
    location.
    """
    module = finding.location.module if finding.location is not None else ""
    name = f"{target.target}:{module}" if module else target.target
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(_artifact(target.target), safe="/@.-_~")},
            "region": {"startLine": 1},
        },
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "module"}],
    }


def _artifact(target: str) -> str:
    """`models/mine.py` of `models/mine.py:factory`; other targets as a path of words."""
    file, _, _ = target.rpartition(":")
    return file if file.endswith(".py") else target.replace(":", "/").lstrip("/")


def _fingerprint(target: TargetReport, finding: Finding) -> str:
    return "+".join(each.digest for each in prints(target, finding)[:4])


def _cases(finding: Finding) -> list[dict[str, Any]]:
    broken = [
        case for case in finding.cases if verdict_of(case) not in (Verdict.PASS, Verdict.SKIP)
    ]
    return [
        {
            "name": case.name,
            "max_abs": case.max_abs,
            "budget": case.budget if isinstance(case, Comparison) else None,
        }
        for case in broken[:MOST_CASES]
    ]
