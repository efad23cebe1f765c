"""`attncheck validate FILE`: check a suite, a report or a baseline without loading a model."""

from __future__ import annotations

from pathlib import Path

import typer

from attncheck.cli.options import argument, expanded


@expanded
def validate(
    files: list[Path] = argument("Suites (.yaml), reports and baselines (.json).", "FILE"),
) -> None:
    """Check suites, reports and baselines without loading a model."""
    for file in files:
        typer.echo(f"{file}: {_checked(file)}")


def _checked(file: Path) -> str:
    if file.suffix != ".json":
        return _suite(file)
    from attncheck.report import baseline, schema

    if schema.is_baseline(file):
        return f"a baseline of {len(baseline.read(file).known)} findings"
    schema.check_report(file)
    return "a valid report"


def _suite(file: Path) -> str:
    from attncheck.suite.expand import load_plan

    jobs = load_plan(file).jobs
    models, probes = len({job.target for job in jobs}), sum(len(job.probes) for job in jobs)
    counts = ((models, "model"), (len(jobs), "setting"), (probes, "probe"))
    return ", ".join(_counted(amount, what) for amount, what in counts) + " to run"


def _counted(amount: int, what: str) -> str:
    return f"{amount} {what}" if amount == 1 else f"{amount} {what}s"
