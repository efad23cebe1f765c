"""`attncheck selftest --cases`: which question catches which fault, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from attncheck.core.settings import Settings

TARGETS = (
    "builtin:gqa",
    "builtin:window",
    "config:gpt2",
    "config:bloom",
    "config:mamba2",
    "config:gemma2",
    "config:gpt_oss",
    "config:bart",
)
"""Where the known faults are injected unless targets are named: each in the first that takes it."""


def measure_worth(
    targets: Sequence[str],
    settings: Settings,
    *,
    probes: Sequence[str],
    faults: Sequence[str],
    each: int,
    random: int,
    record: Path | None,
    choice: Path | None,
    page: Path | None,
) -> int:
    """Measure the matrix and print each row, then choose; the exit code is 1 where a fault is not
    caught.
    """
    from attncheck.core import registry
    from attncheck.run.random_faults.batch import TARGETS as DRAWN_IN
    from attncheck.run.worth.chosen import of_matrix, written
    from attncheck.run.worth.page import put, section, summary
    from attncheck.run.worth.pricing import priced
    from attncheck.run.worth.recording import MatrixRecording
    from attncheck.targets.load import load

    recording = MatrixRecording(
        targets=targets or TARGETS,
        drawn_in=targets or DRAWN_IN,
        settings=settings,
        probes=probes,
        faults=faults,
        each=each,
        random=random,
        file=record,
    )
    for row in recording.run():
        first = ": ".join(row.caught[0]) if row.caught else row.reason or "MISSED"
        typer.echo(f"{row.target:20s} {row.fault:40s} {len(row.caught):4d} {first}")
    controls = {name: registry.load(name).controls for name in probes}
    chosen = of_matrix(recording.matrix, controls)
    if choice is not None:
        subject = load(recording.targets[0], settings)
        chosen = replace(chosen, controls=priced(chosen, subject))
    command = " ".join(["attncheck selftest", *targets, f"--cases --each {each} --random {random}"])
    typer.echo(f"\n{summary(recording.matrix, chosen.order)}")
    if choice is not None:
        choice.write_text(written(chosen, command), encoding="utf-8")
    if page is not None:
        put(page, section(recording.matrix, chosen.order, command))
    return 1 if recording.matrix.missed else 0
