"""`attncheck run`: probes on models, a table for each, one summary line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncheck.cli import options as o
from attncheck.cli.many import Workers, sweep
from attncheck.cli.options import Format, check_dtype, failing, listed, prompt_text
from attncheck.cli.planning import Asked, planned
from attncheck.cli.ranked import ended, is_first, tp_size
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.suite.plan import Job, Plan
from attncheck.targets.target import is_glob

if TYPE_CHECKING:
    from attncheck.cli.present import Presenter


def run(
    targets: o.Targets = None,
    suite: o.Suite = None,
    tag: o.Tags = None,
    probe: o.Probes = None,
    skip: o.Skips = None,
    quick: o.Quick = False,
    attn: o.Attn = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    device_map: o.DeviceMap = None,
    tp: o.TensorParallel = False,
    compiled: o.Compiled = False,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    random_init: o.RandomInit = False,
    layers: o.Layers = None,
    seed: o.Seed = 0,
    prompt: o.Prompt = None,
    length: o.Length = None,
    report: o.Reports = None,
    output: o.Output = Format.table,
    baseline: o.BaselineFile = None,
    write_baseline: o.WriteBaseline = None,
    repro: o.Repro = None,
    jobs: o.Jobs = 1,
    sweep_dir: o.SweepDir = None,
    timeout: o.Timeout = 180.0,
    memory: o.MemoryLimit = 6.0,
    fail_fast: o.FailFast = False,
    strict: o.Strict = False,
    fail_on: o.FailOn = None,
    offline: o.Offline = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
    no_progress: o.NoProgress = False,
    no_color: o.NoColor = False,
) -> None:
    """Run probes on one or more models; without a target and a suite, on the built-in default
    model.
    """
    base = Settings(
        dtype=check_dtype(dtype), device=device, device_map=device_map, revision=revision
    )
    base = replace(
        base,
        trust_remote_code=trust_remote_code,
        random_init=random_init,
        layers=layers,
        offline=offline,
    )
    base = replace(base, seed=seed, prompt=prompt_text(prompt), length=length)
    base = replace(base, tp=tp_size(tp), compiled="inductor" if compiled else None)
    what = Asked(
        targets=listed(targets), suite=suite, settings=base, attn=listed(attn), tags=listed(tag)
    )
    plan = planned(replace(what, probes=listed(probe), skip=listed(skip), quick=quick))
    shown = Format.quiet if quiet and output is Format.table else output
    presenter = _presenter(shown, plan, report, verbose, no_progress, no_color)
    counted = failing(fail_on, strict or plan.strict) | plan.fail_on
    if tp and (jobs > 1 or sweep_dir is not None):
        raise UsageError("--tp runs one model after the other: leave out --jobs and --sweep-dir")
    if jobs > 1 or sweep_dir is not None or any(is_glob(job.target) for job in plan.jobs):
        raise typer.Exit(
            sweep(plan.jobs, presenter, counted, Workers(jobs, sweep_dir, timeout, memory))
        )
    known = None if write_baseline else baseline or plan.baseline
    raise typer.Exit(
        execute(
            plan.jobs, presenter, counted, fail_fast or plan.fail_fast, known, write_baseline, repro
        )
    )


def _presenter(
    output: Format,
    plan: Plan,
    reports: list[str] | None,
    verbose: bool,
    no_progress: bool,
    no_color: bool,
) -> Presenter:
    from attncheck.cli.present import Presenter, destinations

    return Presenter(
        output=output.value,
        destinations=destinations(reports or [], plan.reports) if is_first() else (),
        probes=sum(len(job.probes) for job in plan.jobs),
        verbose=verbose,
        progress=not no_progress,
        color=not no_color,
    )


def execute(
    jobs: Sequence[Job],
    presenter: Presenter,
    fail_on: frozenset[Verdict],
    fail_fast: bool,
    baseline: Path | None = None,
    write_baseline: Path | None = None,
    repro: Path | None = None,
) -> int:
    """Run the jobs and show them; what was finished is reported even when the run is interrupted."""
    from functools import partial

    from attncheck.core.allocator import keep_threshold
    from attncheck.diagnosis.diagnose import Diagnoser
    from attncheck.report import baseline as baselines
    from attncheck.report.write import write_text
    from attncheck.run.gate import Gate
    from attncheck.run.runner import run_probes
    from attncheck.run.session import Session

    keep_threshold()
    gate = Gate(baseline=baselines.read(baseline) if baseline is not None else None)
    command = shlex.join(["attncheck", *sys.argv[1:]])
    with presenter:
        session = Session(
            command=command,
            listener=presenter.hears,
            fail_on=fail_on,
            fail_fast=fail_fast,
            on_forward=presenter.forward,
            gate=gate,
            examine=partial(run_probes, diagnose=Diagnoser(repro)),
        )
        try:
            session.run(jobs)
            code = session.report.exit_code
        except KeyboardInterrupt:
            code = 130
        presenter.ends(session.finished(code))
    if write_baseline is not None and code != 130 and is_first():
        write_text(write_baseline, baselines.to_text(baselines.of_report(session.report)))
    return ended(code)
