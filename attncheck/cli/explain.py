"""`attncheck explain NAME`: the documentation of a probe or a fault, from its source."""

from __future__ import annotations

from typing import Annotated

import typer

from attncheck.core import registry
from attncheck.core.errors import UsageError, unknown


def explain(name: Annotated[str, typer.Argument(help="A probe or a fault.")]) -> None:
    """Print the documentation of one probe or fault."""
    typer.echo(page(name))


def page(name: str) -> str:
    """The page of a probe, else of a fault.

    Raises:
        UsageError: it is neither; the nearest name of both is offered.
    """
    from attncheck.faults import words

    probes = registry.documented()
    if name in probes:
        return f"{name}\n\n{registry.documentation(name)}"
    if name in words.BY_NAME:
        return words.documentation(name)
    raise UsageError(unknown("probe or fault", name, [*probes, *words.NAMES]))
