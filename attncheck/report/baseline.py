"""The baseline: findings that it holds do not count, new ones fail, fixed ones are reported."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import UsageError
from attncheck.core.finding import Finding, KnownFinding
from attncheck.report.fingerprint import Fingerprint, fingerprints
from attncheck.report.model import Report, TargetReport

SCHEMA = "attncheck-baseline/1"
NAMES = {item.name for item in fields(Fingerprint)}


@final
@dataclass(frozen=True)
class Baseline:
    """The findings of an earlier run, by fingerprint."""

    known: tuple[Fingerprint, ...] = ()

    def holds(self, target: TargetReport, finding: Finding) -> bool:
        """Whether every fingerprint of a finding was there before; a pass has none."""
        found = fingerprints(target, finding)
        return bool(found) and all(any(old.same(new) for old in self.known) for new in found)

    def mark(self, target: TargetReport, finding: Finding) -> Finding:
        """The finding, marked as known where the baseline holds it."""
        known = finding.known is None and self.holds(target, finding)
        return replace(finding, known=KnownFinding(by="baseline")) if known else finding

    def vanished(self, report: Report) -> tuple[str, ...]:
        """A line for each finding of the baseline that is gone, among those whose probe ran."""
        ran = {
            (target.target, str(target.settings.get("attn") or ""), finding.probe)
            for target, finding in report.findings
        }
        now = _all(report)
        return tuple(
            f"{old.target}: {old.probe}, {old.case or old.verdict}: in the baseline and gone"
            for old in self.known
            if (old.target, old.attn, old.probe) in ran and not any(old.same(new) for new in now)
        )


def _all(report: Report) -> set[Fingerprint]:
    return {each for found in report.findings for each in fingerprints(*found)}


def of_report(report: Report) -> Baseline:
    """The baseline that accepts everything in a report that did not pass."""
    return Baseline(tuple(sorted(_all(report))))


def to_text(baseline: Baseline) -> str:
    """The file's text: sorted, one fingerprint a line, so that a diff is readable."""
    lines = ",\n".join(
        f"  {json.dumps(asdict(each), ensure_ascii=False)}" for each in sorted(baseline.known)
    )
    return f'{{"schema": "{SCHEMA}", "findings": [\n{lines}\n]}}'


def read(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: it cannot be read, or is no baseline.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = " (`--write-baseline` makes one)" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"baseline {path}: {error.strerror}{hint}") from error
    except ValueError as error:
        raise UsageError(f"baseline {path}: not JSON: {error}") from error
    findings = data.get("findings") if isinstance(data, dict) else None
    if not isinstance(findings, list) or data.get("schema") != SCHEMA:
        raise UsageError(
            f"baseline {path}: expected `schema` to be `{SCHEMA}` and a list `findings`"
        )
    return Baseline(tuple(_entry(path, number, item) for number, item in enumerate(findings)))


def _entry(path: Path, number: int, item: Any) -> Fingerprint:
    strings = isinstance(item, dict) and all(isinstance(value, str) for value in item.values())
    if not strings or set(item) != NAMES:
        listed = ", ".join(f"`{name}`" for name in sorted(NAMES))
        raise UsageError(f"baseline {path}: findings[{number}]: expected the strings {listed}")
    return Fingerprint(**item)
