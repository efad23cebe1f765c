"""`attncheck gate`: a model against a recording of an earlier one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from attncheck.cli.options import (
    TARGET,
    DisplayOptions,
    ModelOptions,
    argument,
    destination,
    expanded,
    option,
    reports_in_lines,
    shown,
)
from attncheck.cli.outputs import check_files, written
from attncheck.cli.run import command_line
from attncheck.cli.run_options import Format
from attncheck.cli.streams import guarded
from attncheck.cli.terminal import ProgressLine, console
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from attncheck.golden.answer import GateAnswer
    from attncheck.report.model import Report


@expanded
def gate(
    *,
    golden: Path = argument("A file that `attncheck record` wrote.", "GOLDEN"),
    target: str = argument(TARGET, "TARGET"),
    strict: bool = option(False, "Count vacuous as failure.", panel="Exit code"),
    report: list[str] | None = shown(
        None,
        "Write a report: json, junit, sarif, markdown or html (repeatable).",
        "FORMAT=PATH",
        callback=reports_in_lines,
    ),
    output: Format = shown(
        Format.table, "Print results as table, json or quiet.", "FORMAT", "--format"
    ),
    options: ModelOptions,
    display: DisplayOptions,
) -> None:
    """Hold a model against a recording of an earlier one.

    Every call of the recording is made again: IDENTICAL, ROUNDING (both exit code 0) or DIFFERENT
    (exit code 1), with the first module that differs. A planted fault has to be seen, else the
    answer is VACUOUS.
    """
    gated(golden, target, options.settings(), report or (), output, display, strict)


def gated(
    golden: Path,
    target: str,
    settings: Settings,
    report: Sequence[str],
    output: Format,
    display: DisplayOptions,
    strict: bool = False,
) -> NoReturn:
    """Hold a target against a recording, show the answer, write reports, and end with its exit
    code.
    """
    asked = [(text, *destination(text)) for text in report]
    check_files([(f"--report {text}", path) for text, _, path in asked], [golden])
    reports = [(kind, path.absolute()) for _, kind, path in asked]
    with guarded(), ProgressLine(not display.no_progress) as line:
        answer, whole = _answered(golden, target, settings, strict, line)
    _show(answer, whole, output, target, not display.no_color)
    for kind, path in reports:
        written(f"--report {kind}={path}", path, _text(answer, whole, kind, target))
    raise typer.Exit(whole.exit_code)


def _answered(
    golden: Path, target: str, settings: Settings, strict: bool, line: ProgressLine
) -> tuple[GateAnswer, Report]:
    line.show("importing torch and transformers")
    import time
    from dataclasses import replace

    from attncheck.core.verdict import failing
    from attncheck.core.version import __version__
    from attncheck.golden.answer import finding
    from attncheck.golden.file import load as read
    from attncheck.golden.gate import hold
    from attncheck.report.model import Report, exit_code
    from attncheck.run.beginning import environment, loaded_report
    from attncheck.targets.load import load

    started = time.perf_counter()
    recording = read(golden)
    line.show(f"loading {target}")
    subject = load(target, settings)
    loaded = loaded_report(subject, time.perf_counter() - started)
    answer = hold(recording, subject, line.show)
    seconds = time.perf_counter() - started
    fail_on = failing((), strict)
    whole = Report(
        attncheck=__version__,
        command=command_line(),
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        seconds=seconds,
        environment=environment(),
        targets=(replace(loaded, results=(finding(answer, seconds),), seconds=seconds),),
        fail_on=tuple(sorted(map(str, fail_on))),
    )
    return answer, replace(whole, exit_code=exit_code(whole, fail_on))


def _show(answer: GateAnswer, whole: Report, output: Format, target: str, color: bool) -> None:
    from attncheck.golden.page import lines
    from attncheck.report.record import to_json

    if output is Format.json or output is Format.jsonl:
        print(to_json(whole), file=sys.stdout)
        return
    page = list(lines(answer, target))
    for text in page[:1] if output is Format.quiet else page:
        console(color).print(text, markup=False, highlight=False, soft_wrap=True)


def _text(answer: GateAnswer, whole: Report, kind: str, target: str) -> str:
    from attncheck.golden.page import comment
    from attncheck.report.write import FORMATS

    text = comment(answer, target) if kind == "markdown" else FORMATS[kind](whole)
    return f"{text}\n"
