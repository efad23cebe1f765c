"""`attncheck triage`: from a report of wrong output to its cause."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncheck.cli.options import (
    TARGET,
    DisplayOptions,
    ModelOptions,
    argument,
    destination,
    expanded,
    in_lines,
    model,
    option,
    prompt_text,
    reports_in_lines,
    shown,
    tokens,
)
from attncheck.cli.outputs import check_files, check_folders, written
from attncheck.cli.run import command_line
from attncheck.cli.streams import guarded
from attncheck.cli.terminal import ProgressLine, console
from attncheck.core.errors import TargetError, Unsupported, UsageError, unknown
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from attncheck.triage.answer import Question, Triage
    from attncheck.triage.call_pattern import CallPattern

SIDES = ("left", "right")

_problem = partial(option, panel="Problem")


@expanded
def triage(
    *,
    target: str = argument(TARGET, "TARGET"),
    symptom: str = _problem(
        "", "batch, cache, long, padding, packing, upgrade, implementation or training.", "NAME"
    ),
    padding_side: str = _problem("", "Padding side of the batch.", "left|right"),
    cache: str = _problem("", "Kind of cache: on, dynamic, static or quantised.", "NAME"),
    compiled: bool = _problem(False, "Check under torch.compile as well.", None, "--compile"),
    against: str | None = _problem(
        None, "A correct run: another target or a recording.", "TARGET|FILE"
    ),
    max_passes: int = _problem(600, "Start no further step after this many forwards.", "N", min=20),
    options: ModelOptions,
    dtype: str = model("auto", "The user's dtype; auto is the checkpoint's own.", "DTYPE"),
    prompt: list[str] | None = tokens(
        None, "Text, or @FILE; several are a batch.", "TEXT", callback=in_lines
    ),
    generate: int = tokens(0, "Generate N tokens greedily from the first prompt.", "N", min=0),
    report: list[str] | None = shown(
        None, "Write a Markdown report.", "markdown=PATH", callback=reports_in_lines
    ),
    repro: Path | None = shown(None, "Write a stand-alone script for the failure.", "FOLDER"),
    display: DisplayOptions,
) -> None:
    """Find out why an output is wrong and name the cause.

    The cause is a fault, rounding, or the model's design. Tries the ways in which people call
    models, finds the smallest failing one, locates the fault and names it.
    """
    from attncheck.triage.answer import Question

    prompts = tuple(prompt_text(text) or "" for text in prompt or [])
    options = replace(options, dtype=dtype)
    backend = "inductor" if compiled else None
    settings = replace(options.settings(), prompt=prompts[0] if prompts else None, compiled=backend)
    question = Question(
        prompts=prompts,
        generate=generate,
        symptom=_checked("symptom", symptom, _symptoms()),
        pattern=_pattern(_checked("padding side", padding_side, SIDES), cache, len(prompts)),
        passes=max_passes,
    )
    paths = [destination(text, ("markdown",))[1] for text in report or []]
    check_files((f"--report markdown={path}", path) for path in paths)
    check_folders([("--repro", repro)])
    paths, repro = [path.absolute() for path in paths], repro.absolute() if repro else None
    with guarded():
        answer = _answered(
            target, settings, question, against, repro, progress=not display.no_progress
        )
    _show(answer, paths, color=not display.no_color)
    raise typer.Exit(answer.answer.exit_code)


def _symptoms() -> tuple[str, ...]:
    from attncheck.triage.routes import ROUTES

    return tuple(name for name in ROUTES if name)


def _checked(kind: str, name: str, valid: tuple[str, ...]) -> str:
    if name and name not in valid:
        raise UsageError(unknown(kind, name, valid))
    return name


def _pattern(side: str, cache: str, prompts: int) -> CallPattern:
    from attncheck.triage.call_pattern import CACHES, CallPattern

    schedule = "steps" if cache else ""
    kind = "" if cache == "on" else _checked("cache", cache, CACHES)
    return CallPattern(padding=side, cache=kind, schedule=schedule, batch=max(1, min(3, prompts)))


def _answered(
    target: str,
    settings: Settings,
    question: Question,
    against: str | None,
    repro: Path | None,
    progress: bool,
) -> Triage:
    from attncheck.triage.against import against_good_run
    from attncheck.triage.precision import opened
    from attncheck.triage.run import Investigation

    with ProgressLine(progress) as line:
        line.show(f"loading {target}")
        subject, reported = opened(target, settings)
        subject.loaded.on_forward = line.forward
        try:
            investigation = Investigation(subject, question, reported, line.show, repro=repro)
        except Unsupported as reason:
            raise TargetError(f"{target}: {reason}") from reason
        if against is not None:
            investigation.first.append(
                lambda: against_good_run(target, against, settings, investigation.log)
            )
        answer = investigation.run()
    return replace(answer, command=command_line())


def _show(answer: Triage, paths: list[Path], color: bool) -> None:
    from attncheck.triage.page import markdown, print_page

    print_page(answer, console(color))
    for path in paths:
        written(f"--report markdown={path}", path, markdown(answer))
