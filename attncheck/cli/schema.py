"""`attncheck schema`: the JSON Schema of suites and of reports."""

from __future__ import annotations

import json
from enum import Enum

import typer

from attncheck.cli.options import argument, expanded


class Described(str, Enum):
    """What a schema describes."""

    suite = "suite"
    report = "report"


@expanded
def schema(
    which: Described = argument("What it describes.", "suite|report", Described.suite),
) -> None:
    """Print the JSON Schema of suite files or of reports."""
    from attncheck.report.schema import report_schema
    from attncheck.suite.schema import suite_schema

    typer.echo(
        json.dumps(suite_schema() if which is Described.suite else report_schema(), indent=1)
    )
