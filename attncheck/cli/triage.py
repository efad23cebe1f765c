"""`attncheck triage`: from a report of wrong output to its cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

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
    from attncheck.triage.issue import Issue

SIDES = ("left", "right")
BATCH = 3
"""Sequences of a padded batch whose prompts are not known."""

_problem = partial(option, panel="Problem")


@final
@dataclass(frozen=True, kw_only=True)
class ReportedCall:
    """How the reporter calls the model, by options or by an issue's text."""

    symptom: str = _problem(
        "", "batch, cache, long, padding, packing, upgrade, implementation or training.", "NAME"
    )
    issue: Path | None = _problem(
        None, "Read prompts, versions and settings out of an issue's text.", "FILE", "--from"
    )
    padding_side: str = _problem("", "Padding side of the batch.", "left|right")
    cache: str = _problem("", "Kind of cache: on, off, dynamic, static or quantised.", "NAME")
    beams: int = _problem(1, "Width of the beam search.", "N", min=1)
    chat: bool = _problem(False, "Put the prompts through the chat template.", None, "--chat")
    difference: float = _problem(
        0.0, "The reported logit difference; without it, tokens must change.", "X", min=0.0
    )
    max_passes: int = _problem(
        0, "Start no further step after this many forwards; 0 goes by the model's size.", "N", min=0
    )

    def question(self, prompts: tuple[str, ...], generate: int, told: Issue) -> Question:
        """The question of these options; what they leave open is `told` by the issue.

        Raises:
            UsageError: no such symptom, padding side or cache.
        """
        from attncheck.triage.answer import Question

        side = _checked("padding side", self.padding_side or told.padding, SIDES)
        new, cache = generate or told.generate, self.cache or told.cache
        prompts = prompts or told.prompts
        return Question(
            prompts=prompts,
            generate=new,
            beams=self.beams if self.beams > 1 else told.beams,
            chat=self.chat or told.chat,
            sampled=told.sampled,
            difference=self.difference or told.difference,
            symptom=_checked("symptom", self.symptom, _symptoms()),
            pattern=_pattern(side, cache, new, len(prompts) or told.sequences),
            passes=self.max_passes,
            issue=told,
        )


@expanded
def triage(
    *,
    target: str = argument(TARGET, "TARGET"),
    reported: ReportedCall,
    compiled: bool = _problem(False, "Check under torch.compile as well.", None, "--compile"),
    against: str | None = _problem(
        None, "A correct run: another target or a recording.", "TARGET|FILE"
    ),
    options: ModelOptions,
    dtype: str = model("auto", "The user's dtype; auto is the checkpoint's own.", "DTYPE"),
    prompt: list[str] | None = tokens(
        None, "Text, or @FILE; several are a batch.", "TEXT", callback=in_lines
    ),
    generate: int = tokens(0, "Generate N tokens greedily from the prompts.", "N", min=0),
    report: list[str] | None = shown(
        None, "Write a Markdown report.", "markdown=PATH", callback=reports_in_lines
    ),
    repro: Path | None = shown(None, "Write a stand-alone script for the failure.", "FOLDER"),
    display: DisplayOptions,
) -> None:
    """Find out why an output is wrong and name the cause.

    The cause is a fault, rounding, or the model's design. Runs what was reported, tries the ways
    in which people call models, finds the smallest failing one, locates the fault and names it.
    """
    told = _told(reported.issue)
    prompts = tuple(prompt_text(text) or "" for text in prompt or [])
    dtype, attn = told.dtype if dtype == "auto" else dtype, options.attn or told.attn or None
    settings = replace(
        replace(options, dtype=dtype, attn=attn).settings(),
        prompt=prompts[0] if prompts else None,
        compiled="inductor" if compiled or told.compiled else None,
    )
    question = reported.question(prompts, generate, told)
    paths = [destination(text, ("markdown",))[1] for text in report or []]
    check_files((f"--report markdown={path}", path) for path in paths)
    check_folders([("--repro", repro)])
    paths, repro = [path.absolute() for path in paths], repro.absolute() if repro else None
    with guarded():
        answer = _answered(
            target, settings, question, against, repro, progress=not display.no_progress
        )
    _show(answer, paths, color=not display.no_color)
    raise typer.Exit(answer.stopped or answer.answer.exit_code)


def _symptoms() -> tuple[str, ...]:
    from attncheck.triage.routes import ROUTES

    return tuple(name for name in ROUTES if name)


def _checked(kind: str, name: str, valid: tuple[str, ...]) -> str:
    if name and name not in valid:
        raise UsageError(unknown(kind, name, valid))
    return name


def _told(issue: Path | None) -> Issue:
    """What an issue's text says; nothing without one.

    Raises:
        UsageError: the file cannot be read.
    """
    from attncheck.triage.issue import Issue, read_issue

    if issue is None:
        return Issue()
    return read_issue(prompt_text(f"@{issue}") or "")


def _pattern(side: str, cache: str, generate: int, prompts: int) -> CallPattern:
    from attncheck.triage.call_pattern import CACHES, CallPattern

    kind = "quantised" if cache == "quantized" else cache
    kind = _checked("cache", kind, ("on", "off", *CACHES))
    if generate == 0 and kind == "off":
        kind = ""  # a forward keeps no cache unless it is requested
    schedule = "steps" if kind and not generate else ""
    kind = "" if kind == "on" else kind
    batch = prompts or (BATCH if side else 1)
    return CallPattern(padding=side, cache=kind, schedule=schedule, batch=batch)


def _answered(
    target: str,
    settings: Settings,
    question: Question,
    against: str | None,
    repro: Path | None,
    progress: bool,
) -> Triage:
    from attncheck.model.switching import uncompiled_flex
    from attncheck.triage.against import against_good_run
    from attncheck.triage.precision import opened
    from attncheck.triage.run import Investigation

    with ProgressLine(progress) as line, uncompiled_flex(settings.attn):
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
