"""The Typer application: every command by name. What a command needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from attncheck.cli import (
    compare,
    doctor,
    explain,
    init,
    mask,
    probes,
    record,
    replay,
    run,
    schema,
    selftest,
    triage,
    validate,
)
from attncheck.core.version import __version__

# Help without rich: drawing it there takes longer than everything else `--help` does.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(spec: bool) -> None:
    if spec:
        typer.echo(f"attncheck {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find attention bugs in Hugging Face models: every shape is right and the output is wrong."""


app.command("run")(run.run)
app.command("probes")(probes.probes)
app.command("explain")(explain.explain)
app.command("selftest")(selftest.selftest)
app.command("replay")(replay.replay)
app.command("init")(init.init)
app.command("validate")(validate.validate)
app.command("schema")(schema.schema)
app.command("triage")(triage.triage)
app.command("compare")(compare.compare)
app.command("record")(record.record)
app.command("mask")(mask.mask)
app.command("doctor")(doctor.doctor)
