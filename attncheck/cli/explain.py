"""`attncheck explain NAME`: the documentation of a probe or a fault, from its source."""

from __future__ import annotations

from typing import Annotated

import typer

from attncheck import registry


def explain(name: Annotated[str, typer.Argument(help="A probe or a fault.")]) -> None:
    """Print the documentation of one probe or fault."""
    typer.echo(f"{name}\n\n{registry.documentation(name)}")
