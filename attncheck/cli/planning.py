"""What a command line asks to run: targets, or a suite narrowed and overridden by options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from attncheck.core import registry
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings
from attncheck.suite.plan import Job, Plan, ProbeCall
from attncheck.targets.target import DEFAULT

NO_SUITE = Path()


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """The part of a command line that says what to run."""

    targets: tuple[str, ...] = ()
    suite: Path | None = None
    settings: Settings
    attn: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    quick: bool = False


def planned(spec: Asked) -> Plan:
    """The plan of a command line; without targets and suite, `attncheck.yaml` above this folder or
    the default model.

    Raises:
        UsageError: targets and a suite, or tags without a suite.
        SuiteError: the suite does not say what it should.
    """
    if spec.targets and spec.suite is not None:
        raise UsageError("give targets or --suite, not both: a suite names its own models")
    suite = spec.suite if spec.targets else spec.suite or _found()
    if suite is not None:
        return _from_suite(suite, spec)
    if spec.tags:
        raise UsageError("--tag selects from a suite, and there is none: give --suite FILE")
    targets = spec.targets or _default_targets()
    return Plan(file=NO_SUITE, jobs=tuple(jobs_for(targets, spec)))


def jobs_for(targets: Sequence[str], spec: Asked) -> list[Job]:
    """One job for each target and attention implementation."""
    names = [
        name for name in registry.select(spec.probes, spec.skip) if not spec.quick or _cheap(name)
    ]
    calls: tuple[ProbeCall, ...] = tuple((name, {}) for name in names)
    return [
        Job(
            target=target, settings=replace(spec.settings, attn=attn), probes=calls, home=Path.cwd()
        )
        for target in targets
        for attn in spec.attn or (None,)
    ]


def _cheap(name: str) -> bool:
    return bool(registry.load(name, home=Path.cwd()).cost == "cheap")


def _found() -> Path | None:
    from attncheck.suite.load import find_suite

    suite = find_suite()
    if suite is not None:
        print(f"attncheck: no target given: running the suite {suite}", file=sys.stderr)
    return suite


def _default_targets() -> tuple[str, ...]:
    """The built-in model, said aloud so that nobody takes it for theirs."""
    print(
        f"attncheck: no target and no suite given: checking the built-in model {DEFAULT}",
        file=sys.stderr,
    )
    return (DEFAULT,)


def _from_suite(suite: Path, spec: Asked) -> Plan:
    from attncheck.suite.choice import Choice
    from attncheck.suite.expand import load_plan

    registry.select([name for name in spec.probes if not registry.is_path(name)], spec.skip)
    plan = load_plan(suite, Choice(tags=spec.tags, probes=spec.probes, skip=spec.skip))
    jobs: list[Job] = []
    for job in plan.jobs:
        jobs += [each for each in _overridden(job, spec) if each not in jobs]
    return replace(plan, jobs=tuple(jobs))


def _overridden(job: Job, spec: Asked) -> list[Job]:
    """A job of a suite with the settings that the command line gives in place of its own."""
    usual = vars(Settings())
    given = {name: value for name, value in vars(spec.settings).items() if value != usual[name]}
    settings = replace(job.settings, **given)
    return [
        replace(job, settings=replace(settings, attn=attn))
        for attn in spec.attn or (settings.attn,)
    ]
