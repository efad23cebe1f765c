"""From a suite to its plan: models x settings x probes, each name checked where it is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from attncheck.core.errors import TargetError
from attncheck.core.verdict import Verdict
from attncheck.suite.expected import with_expected
from attncheck.suite.load import Part, load_parts
from attncheck.suite.matrix import combinations
from attncheck.suite.plan import Job, Plan, Selection
from attncheck.suite.probes import probes_of
from attncheck.suite.schema import ModelEntry
from attncheck.suite.source import Place
from attncheck.targets.target import parse

MOST_JOBS = 10_000
Tags = Mapping[str, frozenset[str]]


def load_plan(file: Path, selection: Selection | None = None) -> Plan:
    """Read, check and expand a suite. Loads the probes that have options, and no model.

    Raises:
        SuiteError: with file, line, column, what stands there and what was expected.
    """
    parts = load_parts(file)
    entries = [
        (part, index, entry) for part in parts for index, entry in enumerate(part.suite.models)
    ]
    if not entries:
        raise parts[-1].source.error(
            (), "no models: expected the key `models` with at least one target"
        )
    found = [each for part, index, entry in entries for each in _jobs(parts, part, index, entry)]
    if len(found) > MOST_JOBS:
        raise parts[-1].source.error(
            ("models",), f"{len(found)} combinations of models and settings; {MOST_JOBS} at most"
        )
    jobs = with_expected(parts, [job for job, _ in found])
    selected = (
        _selected(job, tags, selection or Selection())
        for job, (_, tags) in zip(jobs, found, strict=True)
    )
    return _with_gate(parts, Plan(file=file, jobs=tuple(job for job in selected if job.probes)))


def _with_gate(parts: tuple[Part, ...], plan: Plan) -> Plan:
    """The plan with its gate and its reports; a later file overrides an earlier one."""
    for part in parts:
        suite = part.suite
        plan = replace(
            plan,
            strict=plan.strict if suite.strict is None else suite.strict,
            fail_fast=plan.fail_fast if suite.fail_fast is None else suite.fail_fast,
            fail_on=plan.fail_on | frozenset(suite.fail_on) - {Verdict.PASS},
            baseline=Path(part.path(suite.baseline)) if suite.baseline else plan.baseline,
            reports=plan.reports
            + tuple((kind, Path(part.path(path))) for kind, path in suite.reports.items()),
        )
    return plan


def _selected(job: Job, tags: Tags, selection: Selection) -> Job:
    kept = tuple(
        (name, given) for name, given in job.probes if selection.keeps(job.tags | tags[name], name)
    )
    return replace(job, probes=kept)


def _jobs(
    parts: tuple[Part, ...], part: Part, index: int, entry: ModelEntry
) -> Iterator[tuple[Job, Tags]]:
    home = parts[-1].home
    target, where = _target(part, index, entry), part.source.where(("models", index))
    chosen = probes_of(parts, part, index, entry, home)
    for settings in combinations(parts, part, index, entry):
        job = Job(
            target=target,
            settings=settings,
            probes=tuple((each.name, each.options) for each in chosen),
            tags=frozenset(entry.tags),
            home=home,
            where=where,
        )
        yield job, {each.name: each.tags for each in chosen}


def _target(part: Part, index: int, entry: ModelEntry) -> str:
    """The target seen from the current folder: a path in a suite is relative to the suite."""
    place: Place = ("models", index, "target")
    path, colon, attribute = entry.target.rpartition(":")
    file = path if path.endswith(".py") else entry.target
    near = part.home / file
    text = entry.target
    if near.exists() and not os.path.isabs(file) and not text.startswith(("builtin:", "config:")):
        text = part.path(file) + (colon + attribute if file == path else "")
    try:
        parse(text)
    except TargetError as error:
        raise part.source.error(place, str(error)) from error
    return text
