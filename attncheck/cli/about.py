"""`attncheck probes`, `doctor` and `init`: what is installed here, and a suite to start from."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from attncheck.cli.options import TARGET, argument, expanded, option
from attncheck.core import registry
from attncheck.core.errors import UsageError
from attncheck.targets.target import DEFAULT


def probes() -> None:
    """List the installed probes."""
    for name, headline in registry.headlines().items():
        typer.echo(f"{name:18s} {headline}")


def doctor() -> None:
    """Show what this machine offers: versions, devices, memory."""
    from attncheck.run.doctor import survey

    for name, value in survey():
        typer.echo(f"{name:26s} {value}")


@expanded
def init(
    target: str = argument(TARGET, "TARGET", DEFAULT),
    folder: Path = option(Path(), "Write the suite to this folder.", "FOLDER", panel="Options"),
    force: bool = option(False, "Overwrite an existing suite.", panel="Options"),
) -> None:
    """Write a commented suite, attncheck.yaml, with its JSON Schema."""
    from attncheck.report.write import write_text
    from attncheck.suite.schema import suite_schema
    from attncheck.suite.starter import FILE, SCHEMA_FILE, starter

    file = folder / FILE
    if not folder.is_dir():
        raise UsageError(f"no such folder `{folder}`")
    if file.exists() and not force:
        raise UsageError(f"{file} exists already (--force overwrites it)")
    write_text(file, starter(target).rstrip())
    write_text(folder / SCHEMA_FILE, json.dumps(suite_schema(), indent=1))
    typer.echo(
        f"{file} written: run it with `attncheck run`, check it with `attncheck validate {file}`"
    )
