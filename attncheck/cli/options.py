"""Options of the command line. Each is declared once, as the default of a field or a parameter.

    dtype: str = model("auto", "auto, float64, float32, bfloat16 or float16.", "DTYPE")

A group is a frozen dataclass of options that several commands take. `expanded` gives a command the
fields of its groups as options of its own, so that `--dtype` means the same wherever a model is
loaded. Loads neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, final, get_type_hints

import typer

from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import DTYPES, Settings

TARGET = "Hub id, folder, .gguf file, builtin:NAME, config:TYPE or file.py:factory."
REPORTS = ("json", "junit", "sarif", "markdown", "html")
RARE = " (rare)"
"""Ends the panel's name of an option that few people need."""
NEXT_REPORT = re.compile(rf"\s+(?=(?:{'|'.join(REPORTS)})=)")


def option(
    default: Any,
    text: str,
    metavar: str | None = None,
    *flags: str,
    panel: str,
    rare: bool = False,
    **more: Any,
) -> Any:
    """An option: its default, help, metavar, flags, and the panel of `--help` that lists it.

    `--help` gives only the name of a rare one, `--help-all` its text too.
    """

    def info(name: str) -> Any:
        names = flags or (f"--{name.replace('_', '-')}",)
        long = next(flag for flag in names if flag.startswith("--"))
        variable = f"ATTNCHECK_{long[2:].replace('-', '_').upper()}"
        usual = {"envvar": variable, "show_envvar": False, "metavar": metavar, "help": text}
        where = panel + RARE if rare else panel
        return typer.Option(..., *names, rich_help_panel=where, **{**usual, **more})

    return dataclasses.field(default=default, metadata={"info": info})


def argument(text: str, metavar: str, default: Any = ...) -> Any:
    """A positional argument: its help, its metavar, and its default if it is optional."""
    info = typer.Argument(help=text, metavar=metavar, show_default=bool(default))
    return dataclasses.field(default=default, metadata={"info": lambda name: info})


def in_lines(context: typer.Context, parameter: typer.CallbackParam, values: Any) -> Any:
    """Callback of a list option: one value for each line of its environment variable.

    Click splits at blanks instead, which would cut prompts and paths apart.
    """
    source = context.get_parameter_source(str(parameter.name))
    if source is None or source.name != "ENVIRONMENT":
        return values
    text = os.environ[str(parameter.envvar)]
    return [line.strip() for line in text.splitlines() if line.strip()]


def reports_in_lines(context: typer.Context, parameter: typer.CallbackParam, values: Any) -> Any:
    """Callback of `--report`: as `in_lines`; in one line, each FORMAT= begins another report."""
    lines = in_lines(context, parameter, values)
    return lines if lines is values else [one for line in lines for one in NEXT_REPORT.split(line)]


model = partial(option, panel="Model")
tokens = partial(option, panel="Input")
shown = partial(option, panel="Output")


@final
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a target is loaded, and the tokens that it is checked with."""

    attn: str | None = model(None, "Attention implementation, such as eager or sdpa.", "NAME")
    dtype: str = model(
        "auto", "auto, float64, float32, bfloat16 or float16.", "DTYPE", show_default=False
    )
    device: str = model("auto", "auto, cpu, cuda[:N] or mps.", "DEVICE", show_default=False)
    device_map: str | None = model(
        None,
        "auto, or a JSON file with a device (or disk) for each module.",
        "auto|FILE",
        rare=True,
    )
    revision: str | None = model(None, "Revision on the hub.", "NAME", rare=True)
    trust_remote_code: bool = model(False, "Run code from the model's repository.", rare=True)
    random_init: bool = model(
        False, "Read the config only; build a small model with amplified weights.", rare=True
    )
    layers: int | None = model(None, "Keep the first N layers.", "N", min=1, rare=True)
    offline: bool = model(False, "Use local files only, never the hub.", rare=True)
    seed: int = tokens(0, "Seed of the random input tokens.", "N", rare=True)
    prompt: str | None = tokens(None, "Text, or @FILE, as input instead of random tokens.", "TEXT")
    length: int | None = tokens(None, "Length of the input in tokens.", "N", min=4, rare=True)

    def settings(self) -> Settings:
        """The settings that these options ask for.

        Raises:
            UsageError: no such dtype, or a prompt file that cannot be read.
        """
        if self.dtype not in DTYPES:
            raise UsageError(unknown("dtype", self.dtype, DTYPES))
        return Settings(**{**vars(self), "prompt": prompt_text(self.prompt)})


@final
@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """How a command uses the terminal."""

    no_progress: bool = shown(False, "Show no progress on stderr.", rare=True)
    no_color: bool = shown(
        False, "Print without colors.", envvar=["ATTNCHECK_NO_COLOR", "NO_COLOR"], rare=True
    )


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
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--prompt {prompt}: {reason}") from error


def destination(text: str, formats: Sequence[str] = REPORTS) -> tuple[str, Path]:
    """The format and the path of a report, from FORMAT=PATH.

    Raises:
        UsageError: no such format, or no path.
    """
    kind, equals, path = text.partition("=")
    if not equals or not path:
        example = f"{formats[0]}=report"
        raise UsageError(f"--report {text}: expected FORMAT=PATH, for instance {example}")
    if kind not in formats:
        raise UsageError(f"--report {text}: {unknown('report format', kind, formats)}")
    return kind, Path(path)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose option groups are replaced by one option for each of their fields.

    A parameter of the command itself takes the place of a field of the same name (`run` takes
    several values of `--attn`).
    """
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    own = {
        name: _parameter(name, hints[name], each.default)
        for name, each in signature(command).parameters.items()
        if name not in groups
    }
    owners: dict[str, str] = {}
    listed: dict[str, Parameter] = {}
    for name in signature(command).parameters:
        if name in own:
            listed.setdefault(name, own[name])
            continue
        kinds = get_type_hints(groups[name])
        for field in fields(groups[name]):
            if field.name in own:
                listed[field.name] = own[field.name]
            else:
                owners[field.name] = name
                listed[field.name] = _parameter(field.name, kinds[field.name], field)

    @wraps(command)
    def call(**given: Any) -> None:
        values = {name: given[name] for name in own}
        for group, kind in groups.items():
            values[group] = kind(**{name: given[name] for name in owners if owners[name] == group})
        command(**values)

    # Typer reads the signature for the order and the defaults, the annotations for the types.
    call.__signature__ = Signature(list(listed.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: each.annotation for name, each in listed.items()}
    return call


def _parameter(name: str, kind: Any, declared: Any) -> Parameter:
    annotation = Annotated[kind, declared.metadata["info"](name)]
    default = Parameter.empty if declared.default is ... else declared.default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
