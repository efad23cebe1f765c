"""The report: findings of all targets with what they ran on, to JSON and back. Standard library
only.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from attncheck.core.errors import ChecksFailed
from attncheck.core.finding import (
    Control,
    Diagnosis,
    Evidence,
    Finding,
    Known,
    Location,
    Measurement,
    PrecisionLevel,
    Verdict,
    verdict_of,
    worst_of_model,
)

SCHEMA = "attncheck/1"
NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# A list of numbers over many lines; no text of JSON holds a line break, so this never matches
# inside of one.
ONE_BELOW_THE_OTHER = re.compile(r"\[\n((?:\s*-?\d[\d.eE+-]*,?\n)+)\s*\]")


@final
@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """One target under one setting: what it is, what was found. `error` holds why it could not be
    loaded.
    """

    target: str
    model: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Finding, ...] = ()
    seconds: float = 0.0
    load_seconds: float = 0.0
    error: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of its probes; `error` where it could not be loaded."""
        return (
            Verdict.ERROR
            if self.error
            else worst_of_model(finding.verdict for finding in self.results)
        )


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run."""

    attncheck: str
    command: str
    started: str
    seconds: float = 0.0
    exit_code: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[TargetReport, ...] = ()
    notes: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, int]:
        """How many probes came to each verdict."""
        verdicts = [finding.verdict for target in self.targets for finding in target.results]
        return {verdict.value: verdicts.count(verdict) for verdict in Verdict}

    def raise_for_failures(self) -> None:
        """Do nothing if the run came to exit code 0.

        Raises:
            ChecksFailed: with the tables of what failed, or the reason why nothing ran.
        """
        from attncheck.report.outcome import failures_text

        if self.exit_code:
            raise ChecksFailed(failures_text(self))


def exit_code(report: Report, fail_on: frozenset[Verdict] = frozenset()) -> int:
    """0 nothing failed, 1 a failure, 2 a target that could not be loaded, 3 a crashed probe, 5
    nothing ran.

    Known findings (expected by a suite, held by a baseline) do not count.
    """
    findings = [finding for target in report.targets for finding in target.results]
    verdicts = [finding.verdict for finding in findings]
    counted = [finding.verdict for finding in findings if finding.known is None]
    if any(target.error for target in report.targets):
        return 2
    if any(verdict is Verdict.FAIL or verdict in fail_on for verdict in counted):
        return 1
    if Verdict.ERROR in counted:
        return 3
    return 0 if any(verdict is not Verdict.SKIP for verdict in verdicts) else 5


def case_dict(case: Measurement) -> dict[str, Any]:
    """One case with its verdict."""
    return {
        "name": case.name,
        "verdict": verdict_of(case).value,
        **_plain(case, drop=("name", "spec", "made")),
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One result, with its cases judged."""
    return {
        "probe": finding.probe,
        "verdict": finding.verdict.value,
        "seconds": finding.seconds,
        "summary": finding.summary,
        "cases": [case_dict(case) for case in finding.cases],
        "controls": [_plain(control) for control in finding.controls],
        "controls_missing": finding.controls_missing,
        "diagnosis": _plain(finding.diagnosis),
        "location": _plain(finding.location),
        "skip_reason": finding.skip_reason,
        "error": finding.error,
        "replay": dict(finding.replay),
        "known": _plain(finding.known),
    }


def target_dict(target: TargetReport) -> dict[str, Any]:
    """One target."""
    return {
        "target": target.target,
        "verdict": target.verdict.value,
        "seconds": target.seconds,
        "load_seconds": target.load_seconds,
        "model": dict(target.model),
        "settings": dict(target.settings),
        "results": [finding_dict(finding) for finding in target.results],
        "error": target.error,
        "notes": list(target.notes),
    }


def to_dict(report: Report) -> dict[str, Any]:
    """The JSON of the contract, as Python data; numbers that are not finite are still floats."""
    return {
        "schema": SCHEMA,
        "attncheck": report.attncheck,
        "command": report.command,
        "started": report.started,
        "seconds": report.seconds,
        "exit_code": report.exit_code,
        "environment": dict(report.environment),
        "targets": [target_dict(target) for target in report.targets],
        "summary": report.summary,
        "notes": list(report.notes),
        "fail_on": list(report.fail_on),
    }


def _plain(value: Any, drop: tuple[str, ...] = ()) -> Any:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    names = [item.name for item in dataclasses.fields(value) if item.name not in drop]
    return {name: _jsonable(getattr(value, name)) for name in names}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Verdict):
        return value.value
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    return _plain(value)


def finite(value: Any) -> Any:
    """The same data with every number that is not finite written as the string "nan", "inf" or
    "-inf".
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def to_json(report: Report, indent: int | None = 1) -> str:
    """The report as JSON text."""
    text = json.dumps(finite(to_dict(report)), indent=indent, ensure_ascii=False, allow_nan=False)
    return ONE_BELOW_THE_OTHER.sub(lambda found: f"[{' '.join(found.group(1).split())}]", text)


def from_json(text: str) -> Report:
    """A report from its JSON text.

    Raises:
        ValueError: not JSON, or not a report of this schema.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not a report: expected `schema` to be `{SCHEMA}`")
    known = {item.name for item in dataclasses.fields(Report)}
    rest = {
        key: value
        for key, value in data.items()
        if key in known and key not in ("targets", "notes", "fail_on")
    }
    targets = tuple(_target(item) for item in data["targets"])
    return Report(
        **rest,
        targets=targets,
        notes=tuple(data.get("notes", ())),
        fail_on=tuple(data.get("fail_on", ())),
    )


def _target(data: Mapping[str, Any]) -> TargetReport:
    known = {item.name for item in dataclasses.fields(TargetReport)} - {"results", "notes"}
    rest = {key: value for key, value in data.items() if key in known}
    results = tuple(_finding(item) for item in data["results"])
    return TargetReport(**rest, results=results, notes=tuple(data.get("notes", ())))


def _finding(data: Mapping[str, Any]) -> Finding:
    rest = {
        name: data[name]
        for name in ("probe", "seconds", "summary", "skip_reason", "error", "replay")
    }
    return Finding(
        **rest,
        verdict=Verdict(data["verdict"]),
        cases=tuple(_case(item) for item in data["cases"]),
        controls=tuple(Control(**_numbers(_fields(Control, item))) for item in data["controls"]),
        controls_missing=data.get("controls_missing", ""),
        diagnosis=_diagnosis(data.get("diagnosis")),
        location=_location(data.get("location")),
        known=Known(**_fields(Known, data["known"])) if data.get("known") else None,
    )


def _diagnosis(data: Mapping[str, Any] | None) -> Diagnosis | None:
    if data is None:
        return None
    return Diagnosis(
        **{**_numbers(_fields(Diagnosis, data)), "ruled_out": tuple(data.get("ruled_out", ()))}
    )


def _location(data: Mapping[str, Any] | None) -> Location | None:
    if data is None:
        return None
    layers = tuple(NONFINITE.get(value, value) for value in data.get("layers", ()))
    return Location(**{**_fields(Location, data), "layers": layers})


def _case(data: Mapping[str, Any]) -> Measurement:
    plain = _numbers(_fields(Measurement, data))
    ladder = tuple(
        PrecisionLevel(**_numbers(_fields(PrecisionLevel, rung))) for rung in data.get("ladder", ())
    )
    for name in ("profile", "cuts", "reach"):
        plain[name] = tuple(plain.get(name, ()))
    plain["beside"] = tuple((name, value) for name, value in plain.get("beside", ()))
    return Measurement(**{**plain, "broken": Verdict(data.get("broken", "fail")), "ladder": ladder})


def _fields(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of one part, without the fields of a later version."""
    known = {item.name for item in dataclasses.fields(kind)}
    return {key: value for key, value in data.items() if key in known}


def _numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: NONFINITE.get(value, value)
        if isinstance(value, str) and key not in ("name", "note", "case", "fault")
        else value
        for key, value in data.items()
    }


def evidence_of(finding: Finding) -> Evidence:
    """The evidence behind a saved finding, to be judged again."""
    return Evidence(measurements=finding.cases, replay=finding.replay)
