"""`attncheck probes`: what can be checked."""

from __future__ import annotations

import typer

from attncheck.core import registry


def probes() -> None:
    """List the installed probes with one line each."""
    for name, headline in registry.headlines().items():
        typer.echo(f"{name:18s} {headline}")
