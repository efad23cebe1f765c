"""`attncheck run`: probes on models, a table for each, one summary line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncheck import registry
from attncheck.cli import options as o
from attncheck.cli.options import Format, check_dtype, failing, prompt_text
from attncheck.settings import Settings
from attncheck.subject.target import DEFAULT
from attncheck.suite.plan import Job, ProbeCall

if TYPE_CHECKING:
    from attncheck.cli.present import Presenter


def run(
    targets: o.Targets = None,
    suite: o.Suite = None,
    probe: o.Probes = None,
    skip: o.Skips = None,
    attn: o.Attn = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    device_map: o.DeviceMap = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    random_init: o.RandomInit = False,
    layers: o.Layers = None,
    seed: o.Seed = 0,
    prompt: o.Prompt = None,
    length: o.Length = None,
    report: o.Reports = None,
    output: o.Output = Format.table,
    fail_fast: o.FailFast = False,
    strict: o.Strict = False,
    fail_on: o.FailOn = None,
    offline: o.Offline = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
    no_progress: o.NoProgress = False,
    no_color: o.NoColor = False,
) -> None:
    """Run probes on one or more models; without a target and a suite, on the built-in default model."""
    base = Settings(
        dtype=check_dtype(dtype),
        device=device,
        device_map=device_map,
        revision=revision,
        trust_remote_code=trust_remote_code,
        random_init=random_init,
        layers=layers,
        seed=seed,
        prompt=prompt_text(prompt),
        length=length,
        offline=offline,
    )
    jobs = plan(targets or default_targets(), base, attn or [None], registry.select(probe or (), skip or ()))
    presenter = _presenter(Format.quiet if quiet else output, jobs, report, verbose, no_progress, no_color)
    raise typer.Exit(execute(jobs, presenter, failing(fail_on, strict), fail_fast))


def plan(targets: Sequence[str], base: Settings, attns: Sequence[str | None], probes: Sequence[str]) -> list[Job]:
    """One job for each target and attention implementation."""
    calls: tuple[ProbeCall, ...] = tuple((name, {}) for name in probes)
    return [
        Job(target=target, settings=replace(base, attn=attn), probes=calls, home=Path.cwd())
        for target in targets
        for attn in attns
    ]


def default_targets() -> list[str]:
    """The built-in model, said aloud so that nobody takes it for theirs."""
    print(f"attncheck: no target given: checking the built-in model {DEFAULT}", file=sys.stderr)
    return [DEFAULT]


def _presenter(
    output: Format, jobs: Sequence[Job], reports: list[str] | None, verbose: bool, no_progress: bool, no_color: bool
) -> Presenter:
    from attncheck.cli.present import Presenter, destinations

    return Presenter(
        output=output.value,
        destinations=destinations(reports or []),
        probes=sum(len(job.probes) for job in jobs),
        verbose=verbose,
        progress=not no_progress,
        color=not no_color,
    )


def execute(jobs: Sequence[Job], presenter: Presenter, fail_on: frozenset[object], fail_fast: bool) -> int:
    """Run the jobs and show them; what was finished is reported even when the run is interrupted."""
    from attncheck.session import Session

    command = shlex.join(["attncheck", *sys.argv[1:]])
    with presenter:
        session = Session(
            command=command,
            listener=presenter.hears,
            fail_on=fail_on,  # type: ignore[arg-type]
            fail_fast=fail_fast,
            on_forward=presenter.forward,
        )
        try:
            session.run(jobs)
            code = session.report.exit_code
        except KeyboardInterrupt:
            code = 130
        presenter.ends(session.finished(code))
    return code
