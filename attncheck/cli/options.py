"""Options of the command line: each stands once, in a group that several commands take.

A group is a frozen dataclass whose fields are options. `expanded` gives a command the fields of
its groups as options of its own, so that `--dtype` means the same wherever a model is loaded.
Loads neither torch nor transformers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, final, get_args, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import DTYPES, Settings

TARGET_HELP = "Hub id, folder, .gguf file, builtin:NAME, config:TYPE or file.py:factory."
Target = Annotated[str, typer.Argument(help=TARGET_HELP, metavar="TARGET")]
Targets = Annotated[
    list[str] | None, typer.Argument(help=TARGET_HELP, show_default=False, metavar="TARGET")
]
NEXT_REPORT = re.compile(r"\s+(?=(?:json|junit|sarif|markdown|html)=)")


def option(text: str, *flags: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    """An option with its help and the panel of `--help` that lists it."""
    return typer.Option(..., *flags, help=text, rich_help_panel=panel, metavar=metavar, **more)


def in_lines(context: typer.Context, parameter: typer.CallbackParam, values: Any) -> Any:
    """Callback of a list option: one value for each line of its environment variable.

    Click splits at blanks instead, which would cut prompts and paths apart.
    """
    text = _from_environment(context, parameter)
    return values if text is None else text.splitlines()


def reports_in_lines(context: typer.Context, parameter: typer.CallbackParam, values: Any) -> Any:
    """Callback of `--report`: as `in_lines`; in one line, each FORMAT= begins another report."""
    text = _from_environment(context, parameter)
    if text is None:
        return values
    return [one for line in text.splitlines() for one in NEXT_REPORT.split(line)]


def _from_environment(context: typer.Context, parameter: typer.CallbackParam) -> str | None:
    source = context.get_parameter_source(str(parameter.name))
    if source is None or source.name != "ENVIRONMENT":
        return None
    return os.environ[str(parameter.envvar)]


model = partial(option, panel="Model")
tokens = partial(option, panel="Input")
output = partial(option, panel="Output")


@final
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a target is loaded, and the tokens that it is checked with."""

    attn: Annotated[
        str | None, model("Attention implementation, such as eager or sdpa.", metavar="NAME")
    ] = None
    dtype: Annotated[
        str, model("auto, float64, float32, bfloat16 or float16.", metavar="DTYPE")
    ] = "auto"
    device: Annotated[str, model("auto, cpu, cuda[:N] or mps.", metavar="DEVICE")] = "auto"
    device_map: Annotated[
        str | None,
        model("auto, or a JSON file with a device (or disk) for each module.", metavar="auto|FILE"),
    ] = None
    revision: Annotated[str | None, model("Revision on the hub.", metavar="NAME")] = None
    trust_remote_code: Annotated[bool, model("Run code from the model's repository.")] = False
    random_init: Annotated[
        bool,
        model("Read the config only; build a small model with amplified weights."),
    ] = False
    layers: Annotated[int | None, model("Keep the first N layers.", min=1, metavar="N")] = None
    offline: Annotated[bool, model("Use local files only, never the hub.")] = False
    seed: Annotated[int, tokens("Seed of the random input tokens.", metavar="N")] = 0
    prompt: Annotated[
        str | None, tokens("Text, or @FILE, as input instead of random tokens.", metavar="TEXT")
    ] = None
    length: Annotated[int | None, tokens("Length of the input in tokens.", min=4, metavar="N")] = (
        None
    )

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
    """How a command speaks on a terminal."""

    no_progress: Annotated[bool, output("Show no progress on stderr.")] = False
    no_color: Annotated[
        bool,
        output("Print without colors.", envvar=["ATTNCHECK_NO_COLOR", "NO_COLOR"]),
    ] = False


Attn = Annotated[
    list[str] | None,
    model("Attention implementation, such as eager or sdpa (repeatable).", metavar="NAME"),
]
Repro = Annotated[
    Path | None,
    output("Write a stand-alone script here for each failure.", metavar="FOLDER"),
]


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


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose option groups are replaced by one option for each of their fields.

    A parameter of the command itself takes the place of a field of the same name (`run` takes
    several values of `--attn`). Every option gets an environment variable: ATTNCHECK_DEVICE_MAP
    for `--device-map`.
    """
    hints = get_type_hints(command, include_extras=True)
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
        kinds = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            if field.name in own:
                listed[field.name] = own[field.name]
            else:
                owners[field.name] = name
                listed[field.name] = _parameter(field.name, kinds[field.name], field.default)

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


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    base, *metadata = get_args(annotation)
    info = next(each for each in metadata if isinstance(each, ParameterInfo))
    if isinstance(info, OptionInfo):
        info = copy(info)
        info.param_decls = info.param_decls or (f"--{name.replace('_', '-')}",)
        long = next(flag for flag in info.param_decls if flag.startswith("--"))
        info.envvar = info.envvar or f"ATTNCHECK_{long[2:].replace('-', '_').upper()}"
        info.show_envvar = False
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[base, info]
    )
