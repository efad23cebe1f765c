"""`attncheck selftest --random N`: faults composed at random, and what the probes made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from attncheck.core.settings import Settings
    from attncheck.run.random_faults.trial import Trial


def random_faults(
    targets: Sequence[str],
    count: int,
    settings: Settings,
    probes: Sequence[str],
    *,
    record: Path | None,
    coverage: Path | None,
) -> int:
    """Try random faults and print each flaw; the exit code is 1 where a fault is not caught."""
    from attncheck.run.random_faults import page
    from attncheck.run.random_faults.batch import TARGETS, Batch

    trials: list[Trial] = []
    chosen = list(targets) or list(TARGETS)
    for trial in Batch(chosen, count, settings, probes, record).run():
        trials.append(trial)
        _print(trial)
    if coverage is not None:
        named = " ".join(["attncheck selftest", *targets])
        command = f"{named} --random {count} --seed {settings.seed} --coverage FILE"
        page.written(coverage, page.section(trials, command))
    return _ended(trials)


def given_faults(
    targets: Sequence[str], specs: Sequence[str], settings: Settings, probes: Sequence[str]
) -> int:
    """Try composed faults again, each given as text, in every target."""
    from attncheck.run.random_faults.batch import opened
    from attncheck.run.random_faults.parts import parse

    faults = [parse(each) for each in specs]
    trials: list[Trial] = []
    for target in targets:
        opening = opened(target, settings, probes)
        for fault in faults:
            trials.append(opening.of(fault))
            _print(trials[-1])
    return _ended(trials)


def smallest_doses(
    targets: Sequence[str], settings: Settings, probes: Sequence[str], coverage: Path | None
) -> int:
    """Find the smallest dose of each kind of fault that each probe catches, in each precision; the
    exit code is 1 where a dose that shows is caught by none.
    """
    from attncheck.run.random_faults import page, smallest
    from attncheck.run.random_faults.batch import opened

    found: list[smallest.Sensitivity] = []
    for target in targets:
        for dtype in smallest.DTYPES:
            trials = opened(target, replace(settings, dtype=dtype), probes)
            for each in smallest.sensitivities(trials, dtype):
                found.append(each)
                typer.echo(smallest.line(each))
    if coverage is not None:
        command = f"attncheck selftest --smallest {' '.join(targets)} --coverage FILE"
        page.written(coverage, smallest.section(found, command))
    return int(any(each.missed for each in found))


def _print(trial: Trial) -> None:
    from attncheck.run.random_faults.page import lines_of

    typer.echo("\n".join(lines_of(trial)))


def _ended(trials: Sequence[Trial]) -> int:
    from attncheck.run.random_faults import page

    ran = page.injected(trials)
    typer.echo(f"\n{len(ran)} injected: {page.sentence(trials)}")
    return 0 if all(each.caught for each in ran) else 1
