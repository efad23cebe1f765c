"""`attncheck explain NAME`: the documentation of a probe or a fault, from its source."""

from __future__ import annotations

import typer

from attncheck.cli.options import argument, expanded
from attncheck.core import registry
from attncheck.core.errors import UsageError, unknown
from attncheck.faults import registry as faults


@expanded
def explain(name: str = argument("A probe or a fault.", "NAME")) -> None:
    """Print the documentation of one probe or fault."""
    typer.echo(page(name))


def page(name: str) -> str:
    """The page of a probe or of a fault, from its docstring.

    Raises:
        UsageError: it is neither; the nearest name of both is offered.
    """
    probes = registry.documented()
    if name in probes:
        return f"{name}\n\n{registry.documentation(name)}"
    if name in faults.names():
        return faults.documentation(name)
    raise UsageError(unknown("probe or fault", name, [*probes, *faults.names()]))
