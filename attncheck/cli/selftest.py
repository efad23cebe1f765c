"""`attncheck selftest`: inject every known fault and show what the probes made of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncheck.cli.options import ModelOptions, argument, expanded, option
from attncheck.cli.outputs import check_files, written
from attncheck.cli.random_faults import given_faults, random_faults, smallest_doses
from attncheck.cli.streams import guarded
from attncheck.cli.worth import measure_worth
from attncheck.targets.target import DEFAULT

if TYPE_CHECKING:
    from attncheck.core.settings import Settings
    from attncheck.run.selftest import Row

_faults = partial(option, panel="Faults")
LINE = "{:24s} {:18s} {:34s} {:32s} {:>6s}"


@expanded
def selftest(
    *,
    targets: list[str] | None = argument("Healthy models to inject faults into.", "TARGET", None),
    fault: list[str] | None = _faults(
        None, "Inject only this fault (repeatable): a name, or parts (what=...,how=...).", "NAME"
    ),
    probe: list[str] | None = _faults(None, "Run only these probes (globs).", "NAME"),
    coverage: Path | None = _faults(
        None, "Run every probe on every fault; write the table here.", "FILE"
    ),
    each: int | None = _faults(None, "Inject each fault into at most N targets.", "N", min=1),
    random: int | None = _faults(
        None, "Compose N faults at random, drawn by --seed, instead of the known ones.", "N", min=1
    ),
    smallest: bool = _faults(
        False, "Find the smallest dose of each kind of fault that each probe catches."
    ),
    cases: bool = _faults(
        False, "Measure which cases catch the known faults, and --random ones; choose for --quick."
    ),
    choice: Path | None = _faults(
        None, "With --cases: write the order of cases here, from which --quick takes.", "FILE"
    ),
    record: Path | None = _faults(
        None, "Keep random faults here as JSON lines; a rerun goes on from them.", "FILE"
    ),
    options: ModelOptions,
) -> None:
    """Inject every known fault and check that a probe catches it.

    Exit code 1 if a fault is missed.
    """
    from attncheck.core import registry

    settings = options.settings()
    check_files([] if coverage is None else [(f"--coverage {coverage}", coverage)])
    coverage = coverage and coverage.absolute()
    names = registry.select(probe or ())
    if cases:
        code = measure_worth(
            targets or [],
            settings,
            probes=names,
            faults=_chosen(fault),
            each=each or 1,
            random=random or 0,
            record=record,
            choice=choice,
            page=coverage,
        )
        raise typer.Exit(code)
    if smallest:
        raise typer.Exit(smallest_doses(targets or [DEFAULT], settings, names, coverage))
    if random is not None:
        raise typer.Exit(
            random_faults(targets or [], random, settings, names, record=record, coverage=coverage)
        )
    raise typer.Exit(_known_faults(targets or [DEFAULT], settings, names, fault, each, coverage))


def _known_faults(
    targets: list[str],
    settings: Settings,
    names: list[str],
    fault: list[str] | None,
    each: int | None,
    coverage: Path | None,
) -> int:
    """Inject the known faults and print each; the exit code is 1 where one is missed. Faults given
    by their parts take their place.
    """
    if composed := [each for each in fault or () if "what=" in each]:
        return given_faults(targets, composed, settings, names)
    rows: list[Row] = []
    for target in targets:
        remaining = left(_chosen(fault), rows, each)
        rows += _one(target, settings, names, remaining, thorough=coverage is not None)
    if coverage is not None:
        _write(coverage, rows, names, each)
    # what the smallest doses show is a table, not a test
    whole = [row for row in rows if not row.smallest]
    missed = [row.fault for row in whole if row.missed]
    injected = sum(not row.reason for row in whole)
    named = sum(row.named == "yes" or row.named.startswith("as ") for row in whole)
    typer.echo(
        f"\n{injected} injected, {injected - len(missed)} caught, {named} named" + _said(missed)
    )
    return 1 if missed else 0


def _chosen(fault: list[str] | None) -> list[str]:
    from attncheck.faults import registry as faults

    for name in fault or ():
        faults.path_of(name)
    return fault or list(faults.names())


def left(faults: list[str], rows: list[Row], each: int | None) -> list[str]:
    """The faults that have not been injected in enough targets yet."""
    injected = [row.fault for row in rows if not row.reason and not row.smallest]
    return [name for name in faults if each is None or injected.count(name) < each]


def _one(
    target: str, settings: Settings, probes: list[str], faults: list[str], thorough: bool
) -> list[Row]:
    from attncheck.core import registry
    from attncheck.run.selftest import Selftest
    from attncheck.targets.load import load

    typer.echo(f"{target}\n{LINE.format('fault', 'caught by', 'named', 'located', 's')}")
    rows = []
    with guarded() as out:
        chosen = [registry.load(name) for name in probes]
        for row in Selftest(load(target, settings), chosen, thorough).run(faults):
            rows.append(row)
            typer.echo(line(row), file=out)
    return rows


def line(row: Row) -> str:
    """One row of the table."""
    name = f"{row.fault} (smallest)" if row.smallest else row.fault
    if row.reason:
        return f"{name:24s} -  {row.reason}"
    shown = row.most_telling
    if shown is None:
        missed = "not seen" if row.smallest else "MISSED"
        return LINE.format(name, missed, "", "", f"{row.seconds:.1f}")
    place = shown.location.module if shown.location else ""
    return LINE.format(name, shown.probe, row.named, place, f"{row.seconds:.1f}")


def _said(missed: list[str]) -> str:
    return f", MISSED: {', '.join(dict.fromkeys(missed))}" if missed else ""


def _write(path: Path, rows: list[Row], probes: list[str], each: int | None) -> None:
    from attncheck.run.selftest import coverage

    written(f"--coverage {path}", path, coverage(rows, probes, each))
