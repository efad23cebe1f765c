"""`attncheck selftest`: plant every fault of the catalogue and show what the probes made of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.core.settings import Settings
from attncheck.targets.target import DEFAULT

if TYPE_CHECKING:
    from attncheck.run.selftest import Row

Targets = Annotated[
    list[str] | None, typer.Argument(help="Healthy models to plant faults in.", show_default=False)
]
Faults = Annotated[
    list[str] | None, typer.Option("--fault", help="Only these faults (repeatable).")
]
Probes = Annotated[
    list[str] | None, typer.Option("--probe", help="Only these probes (globs, repeatable).")
]
Coverage = Annotated[
    Path | None,
    typer.Option("--coverage", help="Ask every probe about every fault and write the table here."),
]
Each = Annotated[
    int | None,
    typer.Option(
        "--each", min=1, help="Plant each fault in at most this many targets, in their order."
    ),
]
LINE = "{:24s} {:18s} {:34s} {:32s} {:>6s}"


def selftest(
    targets: Targets = None,
    fault: Faults = None,
    probe: Probes = None,
    coverage: Coverage = None,
    each: Each = None,
) -> None:
    """Plant every fault that the target can carry; exit 1 if one is missed."""
    from attncheck.core import registry

    names = registry.select(probe or ())
    rows: list[Row] = []
    for target in targets or [DEFAULT]:
        rows += _one(target, names, left(_chosen(fault), rows, each), thorough=coverage is not None)
    if coverage is not None:
        _write(coverage, rows, names, each)
    missed = [row.fault for row in rows if row.missed]
    injected = sum(not row.reason for row in rows)
    named = sum(row.named == "yes" or row.named.startswith("as ") for row in rows)
    typer.echo(
        f"\n{injected} planted, {injected - len(missed)} caught, {named} named" + _said(missed)
    )
    raise typer.Exit(1 if missed else 0)


def _chosen(fault: list[str] | None) -> list[str]:
    from attncheck.core.errors import UsageError, unknown
    from attncheck.faults.catalogue import FAULTS

    for name in fault or ():
        if name not in FAULTS:
            raise UsageError(unknown("fault", name, FAULTS))
    return fault or list(FAULTS)


def left(faults: list[str], rows: list[Row], each: int | None) -> list[str]:
    """The faults that have not been planted in enough targets yet."""
    injected = [row.fault for row in rows if not row.reason]
    return [name for name in faults if each is None or injected.count(name) < each]


def _one(target: str, probes: list[str], faults: list[str], thorough: bool) -> list[Row]:
    from attncheck.core import registry
    from attncheck.run.selftest import Selftest
    from attncheck.targets.load import load

    typer.echo(f"{target}\n{LINE.format('fault', 'caught by', 'named', 'located', 's')}")
    rows = []
    for row in Selftest(
        load(target, Settings()), [registry.load(name) for name in probes], thorough
    ).run(faults):
        rows.append(row)
        typer.echo(line(row))
    return rows


def line(row: Row) -> str:
    """One row of the table."""
    if row.reason:
        return f"{row.fault:24s} -  {row.reason}"
    told = row.told
    if told is None:
        return LINE.format(row.fault, "MISSED", "", "", f"{row.seconds:.1f}")
    place = told.location.module if told.location else ""
    return LINE.format(row.fault, told.probe, row.named, place, f"{row.seconds:.1f}")


def _said(missed: list[str]) -> str:
    return f", MISSED: {', '.join(dict.fromkeys(missed))}" if missed else ""


def _write(path: Path, rows: list[Row], probes: list[str], each: int | None) -> None:
    from attncheck.run.selftest import coverage

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(coverage(rows, probes, each), encoding="utf-8")
