"""The options that several commands share, each with its environment twin. Loads neither torch nor
transformers.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import DTYPES
from attncheck.core.verdict import Verdict


class Format(str, Enum):
    """What goes to stdout."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    quiet = "quiet"


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        help="Hub id, folder, .gguf file, builtin:NAME, config:TYPE or file.py:factory.",
        show_default=False,
    ),
]
Probes = Annotated[
    list[str] | None,
    typer.Option("--probe", envvar="ATTNCHECK_PROBE", help="Run these (globs, repeatable)."),
]
Skips = Annotated[
    list[str] | None, typer.Option("--skip", envvar="ATTNCHECK_SKIP", help="Leave these out.")
]
Quick = Annotated[
    bool, typer.Option("--quick", envvar="ATTNCHECK_QUICK", help="Leave the dear probes out.")
]
Attn = Annotated[
    list[str] | None,
    typer.Option("--attn", envvar="ATTNCHECK_ATTN", help="Attention implementation (repeatable)."),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", envvar="ATTNCHECK_DTYPE", help="auto, float64, float32, bfloat16 or float16."
    ),
]
Device = Annotated[
    str, typer.Option("--device", envvar="ATTNCHECK_DEVICE", help="auto, cpu, cuda[:N] or mps.")
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        envvar="ATTNCHECK_DEVICE_MAP",
        help="auto, or FILE.json: a device (or disk) for each module.",
    ),
]
TensorParallel = Annotated[
    bool, typer.Option("--tp", envvar="ATTNCHECK_TP", help="Shard over the processes of torchrun.")
]
Compiled = Annotated[
    bool,
    typer.Option(
        "--compile",
        envvar="ATTNCHECK_COMPILE",
        help="Compare the model under torch.compile with itself as well.",
    ),
]
Revision = Annotated[
    str | None, typer.Option("--revision", envvar="ATTNCHECK_REVISION", help="Hub revision.")
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", envvar="ATTNCHECK_TRUST_REMOTE_CODE", help="Run code from the hub."
    ),
]
RandomInit = Annotated[
    bool,
    typer.Option(
        "--random-init",
        envvar="ATTNCHECK_RANDOM_INIT",
        help="Config only, small, amplified random weights.",
    ),
]
Layers = Annotated[
    int | None,
    typer.Option("--layers", min=1, envvar="ATTNCHECK_LAYERS", help="Keep this many layers."),
]
Seed = Annotated[
    int, typer.Option("--seed", envvar="ATTNCHECK_SEED", help="Seed of the token material.")
]
Prompt = Annotated[
    str | None,
    typer.Option("--prompt", envvar="ATTNCHECK_PROMPT", help="TEXT or @FILE to use as input."),
]
Length = Annotated[
    int | None,
    typer.Option("--length", min=4, envvar="ATTNCHECK_LENGTH", help="Tokens of the main input."),
]
Offline = Annotated[
    bool, typer.Option("--offline", envvar="ATTNCHECK_OFFLINE", help="Never ask the hub.")
]
Reports = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        envvar="ATTNCHECK_REPORT",
        help="FORMAT=PATH: json, junit, sarif, markdown, html (repeatable).",
    ),
]
Output = Annotated[
    Format, typer.Option("--format", envvar="ATTNCHECK_FORMAT", help="What goes to stdout.")
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        envvar="ATTNCHECK_FAIL_ON",
        help="Verdicts that count as failure: warn, noise, vacuous, skip.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", envvar="ATTNCHECK_STRICT", help="vacuous, warn and noise count as failure."
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        envvar="ATTNCHECK_JOBS",
        help="Worker processes, for 'config:*' and several targets.",
    ),
]
SweepDir = Annotated[
    Path | None,
    typer.Option(
        "--sweep-dir",
        envvar="ATTNCHECK_SWEEP_DIR",
        help="Keep one report a target here: resumable.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", envvar="ATTNCHECK_TIMEOUT", help="Seconds for one target of a sweep."
    ),
]
MemoryLimit = Annotated[
    float,
    typer.Option("--memory", envvar="ATTNCHECK_MEMORY", help="GiB for one target of a sweep."),
]
FailFast = Annotated[
    bool,
    typer.Option("--fail-fast", envvar="ATTNCHECK_FAIL_FAST", help="Stop at the first failure."),
]
Suite = Annotated[
    Path | None, typer.Option("--suite", envvar="ATTNCHECK_SUITE", help="A YAML suite.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", envvar="ATTNCHECK_TAG", help="Of a suite, what has this tag (!TAG: has it not)."
    ),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        envvar="ATTNCHECK_BASELINE",
        help="Known findings: they stay silent, new ones fail.",
    ),
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option(
        "--write-baseline",
        envvar="ATTNCHECK_WRITE_BASELINE",
        help="Write the findings of this run there.",
    ),
]
Repro = Annotated[
    Path | None,
    typer.Option(
        "--repro",
        envvar="ATTNCHECK_REPRO",
        help="For each failure, write a script there that shows it by itself.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", envvar="ATTNCHECK_VERBOSE", help="Show every case.")
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", envvar="ATTNCHECK_QUIET", help="Only the summary line.")
]
NoProgress = Annotated[
    bool,
    typer.Option("--no-progress", envvar="ATTNCHECK_NO_PROGRESS", help="No progress on stderr."),
]
NoColor = Annotated[
    bool, typer.Option("--no-color", envvar=["ATTNCHECK_NO_COLOR", "NO_COLOR"], help="No colour.")
]


def listed(values: list[str] | None) -> tuple[str, ...]:
    """What a repeatable option was given."""
    return tuple(values or ())


def check_dtype(name: str) -> str:
    """The dtype, if it is one.

    Raises:
        UsageError: it is none; the nearest is offered.
    """
    if name not in DTYPES:
        raise UsageError(unknown("dtype", name, DTYPES))
    return name


def failing(names: list[str] | None, strict: bool) -> frozenset[Verdict]:
    """The verdicts that count as failure beside `fail`.

    Raises:
        UsageError: a name that is no verdict.
    """
    known = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.PASS}
    for name in names or []:
        if name not in known:
            raise UsageError(unknown("verdict", name, known))
    strictly = {Verdict.VACUOUS, Verdict.WARN, Verdict.NOISE} if strict else set()
    return frozenset({known[name] for name in names or []} | strictly)


def prompt_text(prompt: str | None) -> str | None:
    """The prompt itself, read from a file where it is given as @FILE.

    Raises:
        UsageError: the file cannot be read.
    """
    if prompt is None or not prompt.startswith("@"):
        return prompt
    try:
        return Path(prompt[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--prompt {prompt}: {error.strerror if isinstance(error, OSError) else 'not UTF-8 text'}"
        ) from error
