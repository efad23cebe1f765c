"""`attncheck doctor`: what this machine offers to a run."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Versions, devices, attention implementations that work here, memory, caches, probes."""
    from attncheck.run.doctor import survey

    for name, value in survey():
        typer.echo(f"{name:26s} {value}")
