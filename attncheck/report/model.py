"""The report: findings of all targets with what they ran on. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from attncheck.core.errors import ChecksFailed
from attncheck.core.finding import (
    Evidence,
    Finding,
    Verdict,
    worst_of_model,
)


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


def evidence_of(finding: Finding) -> Evidence:
    """The evidence behind a saved finding, to be judged again."""
    return Evidence(measurements=finding.cases, replay=finding.replay)
