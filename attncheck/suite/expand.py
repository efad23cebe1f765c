"""From a suite to its plan: models x settings x probes, each name checked where it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from attncheck.core.errors import TargetError
from attncheck.core.verdict import Verdict
from attncheck.suite.expected import with_expected
from attncheck.suite.load import Part, SuiteModel, load_parts
from attncheck.suite.matrix import combinations
from attncheck.suite.plan import Job, Plan, Selection
from attncheck.suite.probes import probes_of
from attncheck.targets.target import parse, seen_from_here

MOST_JOBS = 10_000
Tags = Mapping[str, frozenset[str]]


def load_plan(file: Path, selection: Selection | None = None) -> Plan:
    """Read, check and expand a suite. Loads the probes that have options, and no model.

    Raises:
        SuiteError: with file, line, column, what stands there and what was expected.
    """
    parts = load_parts(file)
    models = [
        SuiteModel(parts, part, index, entry)
        for part in parts
        for index, entry in enumerate(part.suite.models)
    ]
    if not models:
        raise parts[-1].error((), "no models: expected the key `models` with at least one target")
    found = [each for model in models for each in _jobs(model)]
    if len(found) > MOST_JOBS:
        message = f"{len(found)} combinations of models and settings; {MOST_JOBS} at most"
        raise parts[-1].error(("models",), message)
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
        reports = [(kind, Path(part.path(path))) for kind, path in suite.reports.items()]
        plan = replace(
            plan,
            strict=plan.strict if suite.strict is None else suite.strict,
            fail_fast=plan.fail_fast if suite.fail_fast is None else suite.fail_fast,
            fail_on=plan.fail_on | frozenset(suite.fail_on) - {Verdict.PASS},
            shard=suite.shard or plan.shard,
            quick=plan.quick if suite.quick is None else suite.quick,
            budget=suite.budget or plan.budget,
            baseline=Path(part.path(suite.baseline)) if suite.baseline else plan.baseline,
            reports=(*plan.reports, *reports),
        )
    return plan


def _selected(job: Job, tags: Tags, selection: Selection) -> Job:
    kept = tuple(
        (name, given) for name, given in job.probes if selection.keeps(job.tags | tags[name], name)
    )
    return replace(job, probes=kept)


def _jobs(model: SuiteModel) -> Iterator[tuple[Job, Tags]]:
    target, probes = _target(model), probes_of(model)
    for settings in combinations(model):
        job = Job(
            target=target,
            settings=settings,
            probes=tuple((each.name, each.options) for each in probes),
            tags=frozenset(model.entry.tags),
            home=model.home,
            where=model.part.source.where(model.place()),
        )
        yield job, {each.name: each.tags for each in probes}


def _target(model: SuiteModel) -> str:
    """The target seen from the current folder: a path in a suite is relative to the suite."""
    try:
        return parse(seen_from_here(model.part.home, model.entry.target)).text
    except TargetError as error:
        raise model.error(str(error), "target") from error
