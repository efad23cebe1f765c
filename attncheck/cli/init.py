"""`attncheck init`: a commented suite to start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attncheck.core.errors import UsageError


def init(
    target: Annotated[str, typer.Argument(help="The model to check.")] = "builtin:gqa",
    folder: Annotated[Path, typer.Option("--folder", help="Where to write it.")] = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Write over a suite that is there.")
    ] = False,
) -> None:
    """Write a commented suite, attncheck.yaml, and its JSON Schema for editors."""
    from attncheck.report.write import write_text
    from attncheck.suite.schema import suite_schema
    from attncheck.suite.starter import FILE, SCHEMA_FILE, starter

    file = folder / FILE
    if not folder.is_dir():
        raise UsageError(f"no such folder `{folder}`")
    if file.exists() and not force:
        raise UsageError(f"{file} is there already (--force writes over it)")
    write_text(file, starter(target).rstrip())
    write_text(folder / SCHEMA_FILE, json.dumps(suite_schema(), indent=1))
    typer.echo(
        f"{file} written: run it with `attncheck run`, check it with `attncheck validate {file}`"
    )
