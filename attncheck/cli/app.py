"""The Typer application: every command by name. A command imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from attncheck import __version__
from attncheck.cli import (
    about,
    compare,
    explain,
    gate,
    mask,
    merge,
    record,
    replay,
    run,
    schema,
    selftest,
    serve_check,
    triage,
    validate,
)
from attncheck.cli.panels import PanelCommand, PanelGroup

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Find bugs": {
        "run": run.run,
        "triage": triage.triage,
        "compare": compare.compare,
        "serve-check": serve_check.serve_check,
        "record": record.record,
        "gate": gate.gate,
        "mask": mask.mask,
        "replay": replay.replay,
    },
    "Suites and reports": {
        "init": about.init,
        "validate": validate.validate,
        "merge": merge.merge,
        "schema": schema.schema,
    },
    "Learn more": {
        "probes": about.probes,
        "explain": explain.explain,
        "selftest": selftest.selftest,
        "doctor": about.doctor,
    },
}

HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    cls=PanelGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attncheck {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find attention bugs in Hugging Face models: every shape is right and the output is wrong."""


for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=PanelCommand, rich_help_panel=panel, context_settings=HELP)(command)
