"""`attncheck triage`: somebody says that the output is wrong; what is it?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli import options as o
from attncheck.cli.options import check_dtype, prompt_text
from attncheck.core.errors import TargetError, Unsupported, UsageError, unknown
from attncheck.core.settings import Settings

if TYPE_CHECKING:
    from attncheck.triage.answer import Question, Triage
    from attncheck.triage.call_pattern import CallPattern

SIDES = ("left", "right")
REPORTS = ("markdown",)

Target = Annotated[
    str,
    typer.Argument(
        help="Hub id, folder, .gguf file, builtin:NAME, config:TYPE or file.py:factory."
    ),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt", envvar="ATTNCHECK_PROMPT", help="TEXT or @FILE; repeated, it is a batch."
    ),
]
Generate = Annotated[
    int,
    typer.Option(
        "--generate",
        min=0,
        envvar="ATTNCHECK_GENERATE",
        help="Tokens to generate greedily from the first prompt.",
    ),
]
Symptom = Annotated[
    str,
    typer.Option(
        envvar="ATTNCHECK_SYMPTOM",
        help="batch, cache, long, padding, packing, upgrade, implementation or training.",
    ),
]
Attn = Annotated[
    str | None,
    typer.Option(
        "--attn", envvar="ATTNCHECK_ATTN", help="The reporter's attention implementation."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", envvar="ATTNCHECK_DTYPE", help="The reporter's; auto: the checkpoint's own."
    ),
]
Side = Annotated[
    str, typer.Option("--padding-side", envvar="ATTNCHECK_PADDING_SIDE", help="left or right.")
]
Cache = Annotated[
    str, typer.Option("--cache", envvar="ATTNCHECK_CACHE", help="on, dynamic, static, quantised.")
]
Compile = Annotated[
    bool,
    typer.Option("--compile", envvar="ATTNCHECK_COMPILE", help="Ask the compiled model as well."),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        envvar="ATTNCHECK_AGAINST",
        help="A good run: another target, or a recorded trace.",
    ),
]
Reports = Annotated[
    list[str] | None, typer.Option("--report", envvar="ATTNCHECK_REPORT", help="markdown=PATH.")
]
Passes = Annotated[
    int,
    typer.Option(
        "--max-passes",
        min=20,
        envvar="ATTNCHECK_MAX_PASSES",
        help="Start nothing new after this many forwards.",
    ),
]


def triage(
    target: Target,
    prompt: Prompts = None,
    generate: Generate = 0,
    symptom: Symptom = "",
    attn: Attn = None,
    dtype: Dtype = "auto",
    padding_side: Side = "",
    cache: Cache = "",
    compiled: Compile = False,
    against: Against = None,
    device: o.Device = "auto",
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    random_init: o.RandomInit = False,
    layers: o.Layers = None,
    seed: o.Seed = 0,
    length: o.Length = None,
    offline: o.Offline = False,
    max_passes: Passes = 600,
    report: Reports = None,
    repro: o.Repro = None,
    no_progress: o.NoProgress = False,
    no_color: o.NoColor = False,
) -> None:
    """Say what a wrong output is: a fault, rounding, what the model does by design, or not to be
    reproduced.
    """
    from attncheck.triage.answer import Question

    prompts = tuple(prompt_text(text) or "" for text in prompt or [])
    settings = Settings(
        attn=attn,
        dtype=check_dtype(dtype),
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        random_init=random_init,
        layers=layers,
        seed=seed,
        prompt=prompts[0] if prompts else None,
        length=length,
        offline=offline,
    )
    question = Question(
        prompts=prompts,
        generate=generate,
        symptom=_checked("symptom", symptom, _symptoms()),
        pattern=_pattern(_checked("padding side", padding_side, SIDES), cache, len(prompts)),
        compiled=compiled,
        passes=max_passes,
    )
    paths = [_destination(text) for text in report or []]
    answer = _asked(target, settings, question, against, repro, progress=not no_progress)
    _show(answer, paths, color=not no_color)
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


def _asked(
    target: str,
    settings: Settings,
    question: Question,
    against: str | None,
    repro: Path | None,
    progress: bool,
) -> Triage:
    from dataclasses import replace

    from attncheck.cli.progress import Progress
    from attncheck.triage.against import against_good_run
    from attncheck.triage.precision import opened
    from attncheck.triage.run import Investigation

    with Progress(progress, 1) as bar:
        bar.says(f"loading {target}")
        subject, reported = opened(target, settings)
        subject.on_forward = bar.forward
        try:
            investigation = Investigation(subject, question, reported, bar.says, repro=repro)
        except Unsupported as reason:
            raise TargetError(f"{target}: {reason}") from reason
        if against is not None:
            investigation.first.append(
                lambda: against_good_run(target, against, settings, investigation.log)
            )
        answer = investigation.run()
    return replace(answer, command=shlex.join(["attncheck", *sys.argv[1:]]))


def _show(answer: Triage, paths: list[Path], color: bool) -> None:
    from attncheck.cli.present import console
    from attncheck.triage.page import markdown
    from attncheck.triage.page import print_page

    print_page(answer, console(color))
    for path in paths:
        path.write_text(markdown(answer), encoding="utf-8")
