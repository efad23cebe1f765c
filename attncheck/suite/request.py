"""What a command line, or pytest, asks to run: targets, or a suite narrowed by options."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from attncheck.core import registry
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings
from attncheck.suite.listed import ListedTarget, read_targets
from attncheck.suite.plan import Job, Plan, ProbeCall, Selection
from attncheck.targets.target import DEFAULT, canonical

NO_SUITE = Path()
NOTHING: Mapping[str, Any] = MappingProxyType({})


@final
@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The part of a command line that says what to run."""

    targets: tuple[str, ...] = ()
    listed: Path | None = None
    suite: Path | None = None
    settings: Settings
    attn: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    quick: bool = False

    def plan(self) -> Plan:
        """The plan; without targets and suite, that of `attncheck.yaml` above this folder or of
        the default model.

        Raises:
            UsageError: targets and a suite, or tags without a suite.
            SuiteError: the suite is wrong.
        """
        named = bool(self.targets or self.listed)
        if named and self.suite is not None:
            raise UsageError("give targets or --suite, not both: a suite names its own models")
        suite = self.suite if named else self.suite or _suite_above()
        if suite is not None:
            return self._of_suite(suite)
        if self.selection.tags:
            raise UsageError("--tag selects from a suite, and there is none: give --suite FILE")
        return Plan(file=NO_SUITE, jobs=tuple(self._jobs(self._targets() or _default_targets())))

    def _targets(self) -> tuple[ListedTarget, ...]:
        """The targets of the command line and those of the list."""
        named = tuple(ListedTarget(target=canonical(target)) for target in self.targets)
        return named + (read_targets(self.listed) if self.listed is not None else ())

    def _jobs(self, targets: Sequence[ListedTarget]) -> list[Job]:
        names = registry.select(self.selection.probes, self.selection.skip)
        calls: list[ProbeCall] = [(name, {}) for name in names]
        probes = self._affordable(calls, Path.cwd())
        return [
            Job(target=each.target, settings=settings, probes=probes, home=Path.cwd())
            for each in targets
            for settings in self._settings(self.settings, each.settings)
        ]

    def _of_suite(self, suite: Path) -> Plan:
        from attncheck.suite.expand import load_plan

        names = [name for name in self.selection.probes if not registry.is_path(name)]
        registry.select(names, self.selection.skip)
        plan = load_plan(suite, self.selection)
        overrides = self.settings.changes()
        jobs = [
            replace(job, settings=settings, probes=self._affordable(job.probes, job.home))
            for job in plan.jobs
            for settings in self._settings(replace(job.settings, **overrides))
        ]
        # An override can make the settings of two jobs equal; Job is not hashable.
        return replace(plan, jobs=tuple(job for i, job in enumerate(jobs) if job not in jobs[:i]))

    def _settings(self, usual: Settings, own: Mapping[str, Any] = NOTHING) -> list[Settings]:
        """The settings of one target, once for each implementation; its `own` ones win."""
        settings = replace(usual, **own)
        several = () if "attn" in own else self.attn
        return [replace(settings, attn=attn) for attn in several or (settings.attn,)]

    def _affordable(self, calls: Sequence[ProbeCall], home: Path) -> tuple[ProbeCall, ...]:
        return tuple(
            call
            for call in calls
            if not self.quick or registry.load(*call, home=home).cost == "cheap"
        )


def _suite_above() -> Path | None:
    from attncheck.suite.load import find_suite

    suite = find_suite()
    if suite is not None:
        print(f"attncheck: no target given: running the suite {suite}", file=sys.stderr)
    return suite


def _default_targets() -> tuple[ListedTarget, ...]:
    # Printed, so that nobody takes the verdict for that of a model of their own.
    print(
        f"attncheck: no target and no suite given: checking the built-in model {DEFAULT}",
        file=sys.stderr,
    )
    return (ListedTarget(target=DEFAULT),)
