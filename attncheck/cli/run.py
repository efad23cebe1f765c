"""`attncheck run`: probes on models, a table for each, one summary line."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
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
    expanded,
    model,
    tokens,
)
from attncheck.cli.planned import planned_presenter
from attncheck.cli.ranked import ended, is_first, tp_size
from attncheck.cli.run_options import GateOptions, OutputOptions, SelectionOptions, SweepOptions
from attncheck.cli.stopping import last_resort
from attncheck.cli.streams import guarded
from attncheck.core.errors import INTERNAL, STOPPED, USAGE, UsageError, stop_code
from attncheck.core.settings import Settings
from attncheck.core.shard import Shard, parsed
from attncheck.core.skips import accepted_skips
from attncheck.core.verdict import failing
from attncheck.suite.parts import part_of_run
from attncheck.suite.plan import Job, Plan
from attncheck.suite.request import RunRequest
from attncheck.targets.target import is_glob

if TYPE_CHECKING:
    from attncheck.cli.present import Presenter
    from attncheck.report.model import Report
    from attncheck.run.session import Session

GIB = 1 << 30
COMPILING = "implementations"
"""The probe that compares the compiled model."""


@expanded
def run(
    *,
    targets: list[str] | None = argument(TARGET, "TARGET", None),
    selection: SelectionOptions,
    loading: ModelOptions,
    attn: list[str] | None = model(None, "Attention implementation (repeatable).", "NAME"),
    tp: bool = model(False, "Shard each model over the processes of torchrun.", rare=True),
    compiled: bool = model(
        False, "Compare under torch.compile as well.", None, "--compile", rare=True
    ),
    engine: str | None = model(
        None, "Check another runtime of the same weights: mlx or ct2.", "NAME", rare=True
    ),
    reach: bool = tokens(
        False, "Cross windows and rotary switches behind the usual input.", rare=True
    ),
    reporting: OutputOptions,
    gate: GateOptions,
    limits: SweepOptions,
    display: DisplayOptions,
) -> None:
    """Run probes on one or more models.

    Without targets: attncheck.yaml in this folder or above, else builtin:gqa.
    """
    settings = replace(
        loading.settings(),
        tp=tp_size(tp),
        compiled="inductor" if compiled else None,
        engine=engine,
        reach=True if reach else None,
    )
    plan = RunRequest(
        targets=tuple(targets or ()),
        listed=selection.listed,
        suite=selection.suite,
        settings=settings,
        attn=tuple(attn or ()),
        selection=selection.selection(),
        quick=selection.quick,
        budget=selection.budget,
    ).plan()
    fail_on = failing(gate.fail_on or (), gate.strict or plan.strict) | plan.fail_on
    listed = selection.listed is not None
    separate = limits.separate or listed or any(is_glob(job.target) for job in plan.jobs)
    shard = parsed(text) if (text := limits.shard or plan.shard) else None
    if tp and separate:
        raise UsageError("--tp runs one model after the other: leave out --jobs and --sweep-dir")
    if tp and limits.timeout is not None:
        raise UsageError("--tp has a limit of its own: set ATTNCHECK_TP_TIMEOUT, not --timeout")
    limits.check(separate)
    if gate.golden is not None and (separate or tp):
        raise UsageError("--golden holds one model: leave out sweeps, --jobs and --tp")
    if shard is not None and gate.write_baseline is not None:
        raise UsageError("--write-baseline needs the whole run: give it to `attncheck merge`")
    _check_options(plan, settings)
    presenter = planned_presenter(plan, reporting, gate, limits, display)
    code = execute(plan, presenter, fail_on, gate, limits, reporting.scripts, separate, shard)
    raise typer.Exit(code)


def _check_options(plan: Plan, settings: Settings) -> None:
    """Refuse what nothing in this run would notice.

    Raises:
        UsageError: `--compile` without the probe that compiles.
    """
    names = {name for job in plan.jobs for name, _ in job.probes}
    if settings.compiled and COMPILING not in names:
        raise UsageError(f"--compile is for the probe `{COMPILING}`, which this run leaves out")


def execute(
    plan: Plan,
    presenter: Presenter,
    fail_on: frozenset[str],
    gate: GateOptions,
    limits: SweepOptions,
    repro: Path | None = None,
    separate: bool = False,
    shard: Shard | None = None,
) -> int:
    """Run the jobs; a run that is stopped still reports what it finished."""
    from attncheck.core.allocator import keep_threshold
    from attncheck.report import baseline
    from attncheck.run.gate import Gate
    from attncheck.run.session import Session

    keep_threshold()
    jobs = _expanded(plan.jobs) if separate else plan.jobs
    if shard is not None:
        jobs, shard = part_of_run(jobs, shard)
    accepted = None if gate.write_baseline else gate.baseline or plan.baseline
    session = Session(
        command=command_line(),
        listener=presenter.listen,
        fail_on=fail_on,
        accepted_skips=accepted_skips(gate.fail_on or ()),
        fail_fast=gate.fail_fast or plan.fail_fast,
        shard=shard,
        gate=Gate(baseline=baseline.read(accepted) if accepted is not None else None),
    )
    check = partial(_swept, limits=limits) if separate else partial(_checked, limits=limits)
    check = check if gate.golden is None else partial(check, golden=gate.golden)
    with presenter.progress:
        try:
            with last_resort(partial(_stuck, session, presenter)), guarded():
                check(jobs, session, presenter, repro=repro)
            code = session.report.exit_code
        except KeyboardInterrupt as stop:
            code = stop_code(stop)
        if code not in STOPPED:
            code = _with_baseline(gate.write_baseline, session.report, code)
        presenter.finish(session.finished(code))
    return ended(code)


def _expanded(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs, with every glob replaced by the config types that it matches."""
    from attncheck.run.sweep import expand

    return tuple(replace(job, target=name) for job in jobs for name in expand([job.target]))


def _stuck(session: Session, presenter: Presenter, number: int) -> int:
    """The exit code of a run that code below Python holds up; what it found is reported."""
    from attncheck.run.deadline import TimeUp, place_of

    code = 128 + number
    if number == signal.SIGALRM:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        words = f"not finished in time, and no signal reaches it{place_of(frame)}"
        session.time_is_up(TimeUp(words))
        code = INTERNAL
    presenter.finish(session.finished(code))
    presenter.stdout.flush()
    return code


def _checked(
    jobs: Sequence[Job],
    session: Session,
    presenter: Presenter,
    limits: SweepOptions,
    repro: Path | None,
    golden: Path | None = None,
) -> None:
    """Run the jobs in this process."""
    from attncheck.run.deadline import time_limit
    from attncheck.run.examining import usual_examination
    from attncheck.run.held import hold_also

    if limits.timeout is not None:
        session.limit = partial(time_limit, limits.timeout)
    session.on_forward = presenter.progress.forward
    session.examine = usual_examination(repro)
    if golden is not None:
        hold_also(session, golden)
    session.run(jobs)


def _swept(
    jobs: Sequence[Job],
    session: Session,
    presenter: Presenter,
    limits: SweepOptions,
    repro: Path | None,
) -> None:
    """Run the jobs in worker processes; show one line for each and write one report of all."""
    from attncheck.run.sweep import Sweep
    from attncheck.run.task import Limits

    presenter.count_targets = True
    usual = Limits()
    allowed = Limits(
        seconds=usual.seconds if limits.timeout is None else limits.timeout,
        memory=usual.memory if limits.memory is None else int(limits.memory * GIB),
    )
    presenter.progress.count(len(jobs), "targets")
    presenter.output = "lines" if presenter.output == "table" else presenter.output
    kept = nullcontext(limits.sweep_dir) if limits.sweep_dir else TemporaryDirectory()
    with kept as folder:
        place = Path(str(folder)).absolute()
        sweep = Sweep(
            jobs=jobs,
            workers=limits.jobs,
            limits=allowed,
            folder=place,
            repro=repro,
            executor=limits.executor.value,
        )
        session.collect(jobs, sweep.run(), sweep.begun)


def _with_baseline(path: Path | None, report: Report, code: int) -> int:
    """Write the baseline of a report. The exit code is that of the run, or 2 if it is lost."""
    from attncheck.report import baseline
    from attncheck.report.write import reason_of, write_text

    if path is None or not is_first():
        return code
    try:
        write_text(path, baseline.to_text(baseline.of_report(report)))
    except OSError as error:
        print(f"attncheck: baseline {path}: not written: {reason_of(error)}", file=sys.stderr)
        return USAGE
    return code


def command_line() -> str:
    """This command as it was typed."""
    return shlex.join(["attncheck", *sys.argv[1:]])
