"""The baseline: findings that are known stay silent, new ones fail, vanished ones are reported."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import UsageError
from attncheck.core.finding import Finding, Known
from attncheck.report.fingerprint import Print, prints
from attncheck.report.model import Report, TargetReport
from attncheck.report.outcome import pairs

SCHEMA = "attncheck-baseline/1"
NAMES = {item.name for item in fields(Print)}


@final
@dataclass(frozen=True)
class Baseline:
    """The findings of an earlier run, by fingerprint."""

    known: tuple[Print, ...] = ()

    def holds(self, target: TargetReport, finding: Finding) -> bool:
        """Whether every fingerprint of a finding was there before; what passes has none and is not
        held.
        """
        found = prints(target, finding)
        return bool(found) and all(any(old.same(new) for old in self.known) for new in found)

    def mark(self, target: TargetReport, finding: Finding) -> Finding:
        """The finding, marked as known where the baseline holds it."""
        known = finding.known is None and self.holds(target, finding)
        return replace(finding, known=Known(by="baseline")) if known else finding

    def vanished(self, report: Report) -> tuple[str, ...]:
        """A line for each finding of the baseline that is gone; what did not run this time is not
        gone.
        """
        ran = {
            (target.target, str(target.settings.get("attn") or ""), finding.probe)
            for target, finding in pairs(report)
        }
        now = [each for target, finding in pairs(report) for each in prints(target, finding)]
        gone = [
            old
            for old in self.known
            if (old.target, old.attn, old.probe) in ran and not any(old.same(n) for n in now)
        ]
        return tuple(
            f"{each.target}: {each.probe}, {each.case or each.verdict}: in the baseline and gone"
            for each in gone
        )


def of_report(report: Report) -> Baseline:
    """The baseline that accepts everything in a report that did not pass."""
    return Baseline(
        tuple(
            sorted({each for target, finding in pairs(report) for each in prints(target, finding)})
        )
    )


def to_text(baseline: Baseline) -> str:
    """The file's text: sorted, one fingerprint a line, so that a diff can be read."""
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
    if (
        not isinstance(data, dict)
        or data.get("schema") != SCHEMA
        or not isinstance(data.get("findings"), list)
    ):
        raise UsageError(
            f"baseline {path}: expected `schema` to be `{SCHEMA}` and a list `findings`"
        )
    return Baseline(
        tuple(_print(path, number, item) for number, item in enumerate(data["findings"]))
    )


def _print(path: Path, number: int, item: Any) -> Print:
    if (
        not isinstance(item, dict)
        or set(item) != NAMES
        or not all(isinstance(value, str) for value in item.values())
    ):
        raise UsageError(
            f"baseline {path}: findings[{number}]: expected the texts {_listed(NAMES)}"
        )
    return Print(**item)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
