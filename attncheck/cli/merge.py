"""`attncheck merge REPORT…`: one report from the shards of a run or the jobs of a CI matrix.

Loads neither torch nor transformers.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

import typer

from attncheck.cli.options import DisplayOptions, argument, destination, expanded, option
from attncheck.cli.outputs import check_files, written
from attncheck.cli.run_options import ShownOptions
from attncheck.core.skips import accepted_skips
from attncheck.core.verdict import failing

if TYPE_CHECKING:
    from attncheck.report.baseline import Baseline
    from attncheck.report.model import Report

_gate = partial(option, panel="Exit code")


@final
@dataclass(frozen=True, kw_only=True)
class MergeGate:
    """Which findings make the command fail, in addition to what the runs said."""

    fail_on: list[str] | None = _gate(None, "Count as failure too, as in `run`.", "VERDICT")
    strict: bool = _gate(False, "Count vacuous, warn and noise as failure.")
    baseline: Path | None = _gate(None, "Accept the findings in this file too.", "FILE")
    write_baseline: Path | None = _gate(
        None, "Write the findings of all reports to a baseline.", "FILE"
    )


@expanded
def merge(
    *,
    reports: list[Path] = argument("Reports (`--report json=PATH`), or folders of them.", "REPORT"),
    output: ShownOptions,
    gate: MergeGate,
    display: DisplayOptions,
) -> None:
    """Join the reports of a run's shards, or of a CI matrix, and fail like one run.

    A shard that is missing, or was stopped, makes the report incomplete and the command fail.
    """
    from attncheck.report import baseline
    from attncheck.report.merge import merged, merged_exit_code, read_reports

    asked = [(f"--report {text}", *destination(text)) for text in output.report or []]
    files = [(told, path) for told, _, path in asked]
    if gate.write_baseline is not None:
        files.append((f"--write-baseline {gate.write_baseline}", gate.write_baseline))
    check_files(files, reports)
    saved = read_reports(reports)
    report = _counted(merged(saved, shlex.join(["attncheck", *sys.argv[1:]])), gate)
    if gate.baseline is not None and gate.write_baseline is None:
        report = _marked(report, baseline.read(gate.baseline))
    report = replace(report, exit_code=merged_exit_code(report, saved))
    _show(report, output, display)
    _write(report, [(kind, path) for _, kind, path in asked])
    if gate.write_baseline is not None:
        text = baseline.to_text(baseline.of_report(report)) + "\n"
        written(f"--write-baseline {gate.write_baseline}", gate.write_baseline, text)
    raise typer.Exit(report.exit_code)


def _counted(report: Report, gate: MergeGate) -> Report:
    """The report with what the options count as failure."""
    more = {str(each) for each in failing(gate.fail_on or (), gate.strict)}
    skips = accepted_skips(gate.fail_on or ())
    return replace(
        report,
        fail_on=tuple(sorted({*report.fail_on, *more})),
        accepted_skips=report.accepted_skips if skips is None else skips,
    )


def _marked(report: Report, accepted: Baseline) -> Report:
    """The report with known findings marked, and a note for each that is gone."""
    targets = tuple(
        replace(target, results=tuple(accepted.mark(target, each) for each in target.results))
        for target in report.targets
    )
    report = replace(report, targets=targets)
    notes = dict.fromkeys((*report.notes, *accepted.vanished(report)))
    return replace(report, notes=tuple(notes))


def _write(report: Report, destinations: list[tuple[str, Path]]) -> None:
    from attncheck.report.github import tell_github
    from attncheck.report.write import Writer

    Writer(destinations).finish(report)
    for line in tell_github(report):
        print(line, file=sys.stderr)


def _show(report: Report, output: ShownOptions, display: DisplayOptions) -> None:
    import json

    from attncheck.cli.terminal import console
    from attncheck.report import terminal
    from attncheck.report.record import finding_json, to_json

    if output.format == "json":
        print(to_json(report))
        return
    if output.format == "jsonl":
        for target, finding in report.findings:
            line = {"target": target.target, **finding_json(finding)}
            print(json.dumps(line, ensure_ascii=False))
        return
    screen = console(not display.no_color)
    for target in report.targets if output.format == "table" else ():
        if output.verbose:
            terminal.print_target(target, screen, verbose=True)
        else:
            screen.print(terminal.target_line(target))
    for note in report.notes:
        screen.print(f"note: {note}")
    if output.format == "table" and report.targets:
        screen.print(str(report.questions), style="dim", highlight=False)
    for text in terminal.closing_lines(report, screen.width, output.traps):
        screen.print(text)
