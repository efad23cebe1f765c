"""`attncheck schema`: the JSON Schema of suites and of reports."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer


class Described(str, Enum):
    """What a schema describes."""

    suite = "suite"
    report = "report"


def schema(
    which: Annotated[Described, typer.Argument(help="suite or report.")] = Described.suite,
) -> None:
    """Print the JSON Schema of suite files or of reports."""
    from attncheck.report.schema import report_schema
    from attncheck.suite.schema import suite_schema

    typer.echo(
        json.dumps(suite_schema() if which is Described.suite else report_schema(), indent=1)
    )
