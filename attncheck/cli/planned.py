"""What shows the run of a plan: its outputs, checked before anything is loaded. Loads neither torch
nor transformers before that.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.cli.options import DisplayOptions, destination
from attncheck.cli.outputs import check_files, check_folders
from attncheck.cli.ranked import is_first
from attncheck.cli.run_options import GateOptions, OutputOptions, SweepOptions
from attncheck.cli.terminal import announced
from attncheck.suite.plan import Plan

if TYPE_CHECKING:
    from attncheck.cli.present import Presenter


def _reports(
    plan: Plan, output: OutputOptions, gate: GateOptions, limits: SweepOptions
) -> list[tuple[str, Path]]:
    """The reports to write, by format and absolute path, since a model may change the folder.

    Raises:
        UsageError: one of them, or another output, cannot be written.
    """
    for _, path in plan.reports:
        with suppress(OSError):  # the check below says why
            path.parent.mkdir(parents=True, exist_ok=True)
    asked = [(text, *destination(text)) for text in output.report or []]
    files = [(f"{plan.file}: reports: {kind}: {path}", path) for kind, path in plan.reports]
    files += [(f"--report {text}", path) for text, _, path in asked]
    if gate.write_baseline is not None:
        files.append((f"--write-baseline {gate.write_baseline}", gate.write_baseline))
    targets = [Path(job.target.rpartition(":")[0] or job.target) for job in plan.jobs]
    check_files(files, [plan.file, *targets])
    check_folders([("--repro", output.repro), ("--sweep-dir", limits.sweep_dir)])
    chosen = [*plan.reports, *((kind, path) for _, kind, path in asked)]
    return [(kind, path.absolute()) for kind, path in chosen]


def planned_presenter(
    plan: Plan,
    output: OutputOptions,
    gate: GateOptions,
    limits: SweepOptions,
    display: DisplayOptions,
) -> Presenter:
    """What shows the run of a plan, once it is known that all its reports can be written.

    Raises:
        UsageError: one of them, or another output, cannot be written.
    """
    return _presenter(plan, _reports(plan, output, gate, limits), output, display)


def _presenter(
    plan: Plan, reports: list[tuple[str, Path]], output: OutputOptions, display: DisplayOptions
) -> Presenter:
    with announced("importing torch and transformers", not display.no_progress):
        from attncheck.cli.present import Presenter

    return Presenter(
        output=output.format,
        destinations=reports if is_first() else (),
        probes=sum(len(job.probes) for job in plan.jobs),
        verbose=output.verbose,
        traps=output.traps,
        progress=not display.no_progress,
        color=not display.no_color,
    )
