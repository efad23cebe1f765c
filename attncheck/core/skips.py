"""How many questions a run asks and skips, by the kind of reason, and which kinds are accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import final

from attncheck.core.errors import UsageError, unknown
from attncheck.core.finding import Finding
from attncheck.core.measurement import Skipped
from attncheck.core.skip_kinds import KINDS
from attncheck.core.verdict import Verdict

LEFT_OUT = "left-out"
"""The kind of what a run with `--quick` or `--budget` does not ask."""
OTHER = "other"
"""The kind of a reason that no pattern matches."""


def kind_of(reason: str) -> str:
    """The name of the kind that a reason belongs to; `other` where none fits."""
    return next((kind.name for kind in KINDS if kind.says(reason)), OTHER)


@final
@dataclass(frozen=True)
class Questions:
    """How many questions were asked, and how many were skipped, by the kind of their reasons."""

    asked: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """How many were not asked."""
        return sum(self.reasons.values())

    def __str__(self) -> str:
        most = sorted(self.reasons.items(), key=lambda each: (-each[1], each[0]))
        why = ", ".join(f"{name} {number}" for name, number in most)
        return f"{self.asked} questions asked, {self.skipped} skipped{': ' if why else ''}{why}"


def questions(findings: Iterable[Finding]) -> Questions:
    """Every case is a question, and so is a probe that was skipped as a whole."""
    asked, reasons = 0, Counter[str]()
    for finding in findings:
        skipped = skip_reasons(finding)
        asked += len(finding.cases) - sum(isinstance(case, Skipped) for case in finding.cases)
        reasons.update(map(kind_of, skipped))
    return Questions(asked, dict(sorted(reasons.items())))


def skip_reasons(finding: Finding) -> list[str]:
    """The reason of each question of a probe that was not asked."""
    reasons = [case.note for case in finding.cases if isinstance(case, Skipped)]
    whole = finding.verdict is Verdict.SKIP and not reasons
    return [finding.skip_reason or finding.summary] if whole else reasons + left_out(finding)


def left_out(finding: Finding) -> list[str]:
    """A reason for each question of a probe that a run with `--quick` or `--budget` left out."""
    return [f"left out by --quick or --budget: {name}" for name in finding.left]


def accepted_skips(names: Iterable[str]) -> tuple[str, ...] | None:
    """The kinds of skips that `skip=KIND,…` among the names of `--fail-on` accepts; None where
    there is no such list.

    Raises:
        UsageError: a kind that does not exist.
    """
    lists = [name.partition("=")[2] for name in names if name.startswith("skip=")]
    kinds = tuple(kind.strip() for each in lists for kind in each.split(",") if kind.strip())
    valid = [*(kind.name for kind in KINDS), OTHER]
    for kind in kinds:
        if not any(fnmatch(each, kind) for each in valid):
            raise UsageError(unknown("kind of skip", kind, valid))
    return kinds if lists else None


def is_accepted(finding: Finding, kinds: Iterable[str]) -> bool:
    """Whether the reason of every skip of a finding is of an accepted kind (globs)."""
    accepted = tuple(kinds)
    return all(
        any(fnmatch(kind_of(reason), kind) for kind in accepted) for reason in skip_reasons(finding)
    )
