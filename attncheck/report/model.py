"""The report in memory: the findings of all targets, with what they ran on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from attncheck.core.errors import FAILED, INTERNAL, NOTHING_RAN, USAGE, ChecksFailed
from attncheck.core.finding import Finding, Trap
from attncheck.core.shard import Shard
from attncheck.core.skips import Questions, is_accepted, questions
from attncheck.core.verdict import TRAP, Verdict, worst_of_model
from attncheck.report.table import finding_text

Outcome = Literal["failed", "crashed", "known", "skipped", "passed"]
LABEL_SETTINGS = ("attn", "dtype", "device", "cache")


@final
@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """One target under one setting. `error` says why it could not be loaded; `place` is its place
    among the jobs of a run that is split over machines, from 1, and 0 elsewhere.
    """

    target: str
    model: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Finding, ...] = ()
    seconds: float = 0.0
    load_seconds: float = 0.0
    error: str | None = None
    notes: tuple[str, ...] = ()
    questions: Questions | None = None
    place: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its probes; `error` where it could not be loaded."""
        verdicts = (finding.verdict for finding in self.results)
        return Verdict.ERROR if self.error else worst_of_model(verdicts)

    @property
    def broken(self) -> str:
        """`not loaded`, or `not finished` where its process ended early; empty if neither."""
        if self.error is None:
            return ""
        return "not finished" if self.model else "not loaded"

    @property
    def label(self) -> str:
        """The target and how it was loaded: `builtin:gqa (sdpa, float64, cpu)`."""
        spec = self.settings.get("asked") or {}
        values = [self.settings.get(name) or spec.get(name) for name in LABEL_SETTINGS]
        shown = ", ".join(str(value) for value in values if value not in (None, "", "auto"))
        return f"{self.target} ({shown})" if shown else self.target


@final
@dataclass(frozen=True, kw_only=True)
class TrapReport:
    """A trap of the library, with the targets that met it."""

    trap: str
    call: str
    reference: str
    max_abs: float | None
    targets: tuple[str, ...]
    advice: str


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run. `incomplete` says how much of it was done before it was stopped, such as
    `8 of 16 probes`; it is empty where nothing is missing.
    """

    attncheck: str
    command: str
    started: str
    seconds: float = 0.0
    exit_code: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[TargetReport, ...] = ()
    notes: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()
    incomplete: str = ""
    accepted_skips: tuple[str, ...] | None = None
    shard: Shard | None = None

    @property
    def questions(self) -> Questions:
        """How many questions all targets were asked, and how many were skipped, and why."""
        return questions(finding for _, finding in self.findings)

    @property
    def findings(self) -> Iterator[tuple[TargetReport, Finding]]:
        """Every finding with its target."""
        for target in self.targets:
            for finding in target.results:
                yield target, finding

    @property
    def summary(self) -> dict[str, int]:
        """How many findings have each verdict."""
        verdicts = [finding.verdict for _, finding in self.findings]
        return {verdict.value: verdicts.count(verdict) for verdict in Verdict}

    @property
    def traps(self) -> tuple[TrapReport, ...]:
        """Each trap of the library once, in the order in which they were met."""
        met: dict[str, list[tuple[str, Trap]]] = {}
        for target, finding in self.findings:
            for trap in finding.traps:
                met.setdefault(trap.trap, []).append((target.target, trap))
        return tuple(_trap_report(each) for each in met.values())

    def outcome(self, finding: Finding) -> Outcome:
        """What a finding means for the run: `failed` and `crashed` make it fail."""
        if "skip" in self.fail_on and self.unaccepted(finding):
            return "failed"
        if finding.verdict is Verdict.SKIP:
            return "skipped"
        if finding.verdict is Verdict.PASS:
            return "passed"
        if finding.known is not None:
            return "known"
        if finding.verdict is Verdict.FAIL or finding.verdict.value in self.fail_on:
            return "failed"
        return "crashed" if finding.verdict is Verdict.ERROR else "passed"

    def unaccepted(self, finding: Finding) -> bool:
        """Whether a finding fails a run that skips must not pass: for a probe that was skipped or,
        where a list says which kinds of skips are accepted, for any question of another kind.
        """
        if finding.known is not None:
            return False
        if self.accepted_skips is None:
            return finding.verdict is Verdict.SKIP
        return not is_accepted(finding, self.accepted_skips)

    def raise_for_failures(self) -> None:
        """Do nothing if the exit code of the run is 0.

        Raises:
            ChecksFailed: with the tables of what failed, or the reason why nothing ran.
        """
        if self.exit_code:
            raise ChecksFailed("\n\n".join(self._failures() or self._reasons()))

    def _failures(self) -> list[str]:
        found = [f"{each.target}: {each.error}" for each in self.targets if each.error is not None]
        for target, finding in self.findings:
            if self.outcome(finding) in ("failed", "crashed"):
                found.append(f"{target.label}\n{finding_text(finding)}")
                found += [finding.error.rstrip()] if finding.error else []
        return found

    def _reasons(self) -> list[str]:
        """Why nothing ran."""
        skipped = [finding for _, finding in self.findings if finding.skip_reason]
        reasons = dict.fromkeys(f"{each.probe}: {each.skip_reason}" for each in skipped)
        return ["nothing ran", *reasons]


def _trap_report(met: list[tuple[str, Trap]]) -> TrapReport:
    first = met[0][1]
    targets = tuple(dict.fromkeys(target for target, _ in met))
    return TrapReport(**vars(first), targets=targets)


def exit_code(report: Report, fail_on: frozenset[str] = frozenset()) -> int:
    """0 nothing failed, 1 a failure, 2 a target that could not be loaded, 3 a crashed probe, 5
    nothing ran.

    Known findings (expected by a suite, or in the baseline) do not count. A shard without targets
    has nothing to do.
    """
    findings = [finding for _, finding in report.findings]
    counted = [finding.verdict for finding in findings if finding.known is None]
    if any(target.error for target in report.targets):
        return USAGE
    trapped = TRAP in fail_on and bool(report.traps)
    skipped = Verdict.SKIP in fail_on and any(map(report.unaccepted, findings))
    others = fail_on - {Verdict.SKIP}
    broken = any(verdict is Verdict.FAIL or verdict in others for verdict in counted)
    if trapped or skipped or broken:
        return FAILED
    if Verdict.ERROR in counted:
        return INTERNAL
    ran = any(finding.verdict is not Verdict.SKIP for finding in findings)
    nothing_to_do = report.shard is not None and not report.targets
    return 0 if ran or nothing_to_do else NOTHING_RAN
