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
from attncheck.core.extent import RunExtent, seconds_of
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
    budget: str | None = None

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
            return self._limited(self._of_suite(suite))
        if self.selection.tags:
            raise UsageError("--tag selects from a suite, and there is none: give --suite FILE")
        jobs = self._jobs(self._targets() or _default_targets())
        return self._limited(Plan(file=NO_SUITE, jobs=tuple(jobs)))

    def _limited(self, plan: Plan) -> Plan:
        """The plan, each job of it within the extent that the options, or else the suite, allow."""
        budget = self.budget or plan.budget
        seconds = seconds_of(budget) if budget is not None else None
        extent = RunExtent(self.quick or plan.quick, seconds)
        return replace(plan, jobs=tuple(replace(job, extent=extent) for job in plan.jobs))

    def _targets(self) -> tuple[ListedTarget, ...]:
        """The targets of the command line and those of the list."""
        named = tuple(ListedTarget(target=canonical(target)) for target in self.targets)
        return named + (read_targets(self.listed) if self.listed is not None else ())

    def _jobs(self, targets: Sequence[ListedTarget]) -> list[Job]:
        names = registry.select(self.selection.probes, self.selection.skip)
        probes: tuple[ProbeCall, ...] = tuple((name, {}) for name in names)
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
            replace(job, settings=settings)
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
