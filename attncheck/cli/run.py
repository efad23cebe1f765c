"""`attncheck run`: probes on models, a table for each, one summary line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from attncheck.cli.options import (
    TARGET,
    DisplayOptions,
    ModelOptions,
    argument,
    destination,
    expanded,
    model,
)
from attncheck.cli.ranked import ended, is_first, tp_size
from attncheck.cli.run_options import GateOptions, OutputOptions, SelectionOptions, SweepOptions
from attncheck.core.errors import INTERRUPTED, UsageError
from attncheck.core.verdict import Verdict, failing
from attncheck.suite.plan import Job, Plan
from attncheck.suite.request import RunRequest
from attncheck.targets.target import is_glob

if TYPE_CHECKING:
    from attncheck.cli.present import Presenter

GIB = 1 << 30


@expanded
def run(
    *,
    targets: list[str] | None = argument(TARGET, "TARGET", None),
    selection: SelectionOptions,
    loading: ModelOptions,
    attn: list[str] | None = model(None, "Attention implementation (repeatable).", "NAME"),
    tp: bool = model(False, "Shard each model over the processes of torchrun."),
    compiled: bool = model(False, "Compare under torch.compile as well.", None, "--compile"),
    reporting: OutputOptions,
    gate: GateOptions,
    limits: SweepOptions,
    display: DisplayOptions,
) -> None:
    """Run probes on one or more models.

    Without targets and --suite, the suite attncheck.yaml in this folder or above it runs; where
    there is none, the built-in model builtin:gqa is checked.
    """
    settings = replace(
        loading.settings(), tp=tp_size(tp), compiled="inductor" if compiled else None
    )
    plan = RunRequest(
        targets=tuple(targets or ()),
        suite=selection.suite,
        settings=settings,
        attn=tuple(attn or ()),
        selection=selection.selection(),
        quick=selection.quick,
    ).plan()
    fail_on = failing(gate.fail_on or (), gate.strict or plan.strict) | plan.fail_on
    presenter = _presenter(plan, reporting, display)
    separate = limits.jobs > 1 or limits.sweep_dir is not None
    if tp and separate:
        raise UsageError("--tp runs one model after the other: leave out --jobs and --sweep-dir")
    if separate or any(is_glob(job.target) for job in plan.jobs):
        raise typer.Exit(sweep(plan.jobs, presenter, fail_on, limits))
    raise typer.Exit(execute(plan, presenter, fail_on, gate, reporting.repro))


def _presenter(plan: Plan, output: OutputOptions, display: DisplayOptions) -> Presenter:
    reports = [*plan.reports, *(destination(text) for text in output.report or [])]
    for _, path in plan.reports:
        path.parent.mkdir(parents=True, exist_ok=True)
    from attncheck.cli.present import Presenter

    return Presenter(
        output=output.format,
        destinations=reports if is_first() else (),
        probes=sum(len(job.probes) for job in plan.jobs),
        verbose=output.verbose,
        progress=not display.no_progress,
        color=not display.no_color,
    )


def execute(
    plan: Plan,
    presenter: Presenter,
    fail_on: frozenset[Verdict],
    gate: GateOptions,
    repro: Path | None = None,
) -> int:
    """Run the jobs in this process; an interrupted run still reports what it finished."""
    from attncheck.core.allocator import keep_threshold
    from attncheck.diagnosis.diagnose import Diagnoser
    from attncheck.report import baseline
    from attncheck.report.write import write_text
    from attncheck.run.gate import Gate
    from attncheck.run.runner import run_probes
    from attncheck.run.session import Session

    keep_threshold()
    accepted = None if gate.write_baseline else gate.baseline or plan.baseline
    with presenter.progress:
        session = Session(
            command=command_line(),
            listener=presenter.listen,
            fail_on=fail_on,
            fail_fast=gate.fail_fast or plan.fail_fast,
            on_forward=presenter.progress.forward,
            gate=Gate(baseline=baseline.read(accepted) if accepted is not None else None),
            examine=partial(run_probes, diagnose=Diagnoser(repro)),
        )
        try:
            session.run(plan.jobs)
            code = session.report.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        presenter.finish(session.finished(code))
    if gate.write_baseline is not None and code != INTERRUPTED and is_first():
        write_text(gate.write_baseline, baseline.to_text(baseline.of_report(session.report)))
    return ended(code)


def sweep(
    jobs: Sequence[Job], presenter: Presenter, fail_on: frozenset[Verdict], options: SweepOptions
) -> int:
    """Run the jobs in worker processes; show one line for each and write one report of all."""
    from attncheck.run import sweep as sweeps
    from attncheck.run.session import Session, TargetFinished

    session = Session(command=command_line(), listener=presenter.listen, fail_on=fail_on)
    every = [replace(job, target=target) for job in jobs for target in sweeps.expand([job.target])]
    limits = sweeps.Limits(seconds=options.timeout, memory=int(options.memory * GIB))
    presenter.output = "lines" if presenter.output == "table" else presenter.output
    kept = nullcontext(options.sweep_dir) if options.sweep_dir else TemporaryDirectory()
    with presenter.progress, kept as folder:
        try:
            for target in sweeps.run_jobs(
                every, workers=options.jobs, limits=limits, folder=Path(folder)
            ):
                session.adopt(target)
                presenter.listen(TargetFinished(target), session.report)
            code = session.report.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        presenter.finish(session.finished(code))
    return code


def command_line() -> str:
    """This command as it was typed."""
    return shlex.join(["attncheck", *sys.argv[1:]])
