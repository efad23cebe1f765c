"""`attncheck triage`: from a report of wrong output to its cause."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.options import (
    DisplayOptions,
    ModelOptions,
    Repro,
    Target,
    expanded,
    in_lines,
    model,
    option,
    output,
    prompt_text,
    reports_in_lines,
    tokens,
)
from attncheck.cli.run import command_line
from attncheck.core.errors import TargetError, Unsupported, UsageError, unknown
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from attncheck.triage.answer import Question, Triage
    from attncheck.triage.call_pattern import CallPattern

SIDES = ("left", "right")
REPORTS = ("markdown",)

symptoms = partial(option, panel="Report of the problem")

Prompts = Annotated[
    list[str] | None,
    tokens(
        "Text, or @FILE, that gives the wrong output; repeated, it is a batch.",
        metavar="TEXT",
        callback=in_lines,
    ),
]
Generate = Annotated[
    int, tokens("Generate N tokens greedily from the first prompt.", min=0, metavar="N")
]
Symptom = Annotated[
    str,
    symptoms(
        "batch, cache, long, padding, packing, upgrade, implementation or training.",
        metavar="NAME",
    ),
]
Attn = Annotated[
    str | None, model("Attention implementation of the problem report.", metavar="NAME")
]
Dtype = Annotated[
    str, model("Dtype of the problem report; auto is the checkpoint's own.", metavar="DTYPE")
]
PaddingSide = Annotated[str, symptoms("Padding side of the batch.", metavar="left|right")]
Cache = Annotated[str, symptoms("Kind of cache: on, dynamic, static or quantised.", metavar="NAME")]
Compile = Annotated[bool, symptoms("Check the model under torch.compile as well.", "--compile")]
Against = Annotated[
    str | None, symptoms("A correct run: another target or a recording.", metavar="TARGET|FILE")
]
Reports = Annotated[
    list[str] | None,
    output("Write a Markdown report.", metavar="markdown=PATH", callback=reports_in_lines),
]
MaxPasses = Annotated[
    int, symptoms("Start no further step after this many forwards.", min=20, metavar="N")
]


@expanded
def triage(
    *,
    target: Target,
    symptom: Symptom = "",
    padding_side: PaddingSide = "",
    cache: Cache = "",
    compiled: Compile = False,
    against: Against = None,
    max_passes: MaxPasses = 600,
    options: ModelOptions,
    prompt: Prompts = None,
    generate: Generate = 0,
    attn: Attn = None,
    dtype: Dtype = "auto",
    report: Reports = None,
    repro: Repro = None,
    display: DisplayOptions,
) -> None:
    """Find out why an output is wrong and name the cause.

    The cause is a fault, rounding, or the model's design. Tries the ways in which people call
    models, finds the smallest failing one, locates the fault and names it.
    """
    from attncheck.triage.answer import Question

    prompts = tuple(prompt_text(text) or "" for text in prompt or [])
    options = replace(options, attn=attn, dtype=dtype)
    settings = replace(options.settings(), prompt=prompts[0] if prompts else None)
    question = Question(
        prompts=prompts,
        generate=generate,
        symptom=_checked("symptom", symptom, _symptoms()),
        pattern=_pattern(_checked("padding side", padding_side, SIDES), cache, len(prompts)),
        compiled=compiled,
        passes=max_passes,
    )
    paths = [_destination(text) for text in report or []]
    answer = _answered(target, settings, question, against, repro, progress=not display.no_progress)
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


def _destination(text: str) -> Path:
    kind, equals, path = text.partition("=")
    if not equals or not path:
        raise UsageError(f"--report {text}: expected markdown=PATH")
    _checked("report format", kind, REPORTS)
    if not Path(path).resolve().parent.is_dir():
        raise UsageError(f"--report {text}: no such folder `{Path(path).parent}`")
    return Path(path)


def _answered(
    target: str,
    settings: Settings,
    question: Question,
    against: str | None,
    repro: Path | None,
    progress: bool,
) -> Triage:
    from attncheck.cli.progress import ProgressLine
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
    from attncheck.cli.present import console
    from attncheck.triage.page import markdown, print_page

    print_page(answer, console(color))
    for path in paths:
        path.write_text(markdown(answer), encoding="utf-8")
