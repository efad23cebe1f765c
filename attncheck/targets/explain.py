"""One line for what the library raised while it loaded a target: the file, the key, what was
expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from attncheck.core.errors import TargetError, first_line, nearest
from attncheck.core.visible import shortened
from attncheck.targets.files import CONFIG, HEADS, SIZES, read_json, too_small
from attncheck.targets.target import Target

OUT_OF_REACH = (
    "local_files_only",
    "offline",
    "couldn't connect",
    "connection error",
    "cannot find the requested files in the local cache",
)
NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
VALIDATION = re.compile(r"StrictDataclass\w+: [^:]*: \w+: ")
LOW_LEVEL = (ZeroDivisionError, LookupError, TypeError, AttributeError, RuntimeError, ValueError)
"""What a wrong field of a config raises somewhere inside the library."""


def explain(error: BaseException, target: Target) -> str:
    """What went wrong while a target was loaded, in one line."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(sign in text for sign in NO_MEMORY):
        return (
            f"out of memory while it was loaded ({first_line(error)}): try --dtype bfloat16, "
            "--device-map auto, --layers N or --random-init"
        )
    if any(sign in text for sign in OUT_OF_REACH):
        return (
            "not in the local cache, and the hub cannot be reached "
            "(a folder or a .gguf file works without it)"
        )
    if type(error).__name__ == "SafetensorError":
        return f"a .safetensors file is truncated or damaged ({first_line(error)})"
    if "trust_remote_code" in text:
        return "needs code from its repository: read that code, then give --trust-remote-code"
    if "attn_implementation" in text and "not supported" in text:
        return f"no such attention implementation: {_attention(text)}"
    if "unrecognized configuration class" in text:
        kind = type(error).__name__
        return f"not a language model: its config has no class with a language head ({kind})"
    return _of_files(error, target) or _of_config(first_line(error), target)


def _of_config(line: str, target: Target) -> str:
    """The line of an error about a field of the config, without the name of its validator."""
    found = VALIDATION.match(line)
    file = str(Path(target.where) / CONFIG) if target.kind == "folder" else CONFIG
    return f"{file}: {line[found.end() :]}" if found else line


def _attention(text: str) -> str:
    wanted = text.partition('attn_implementation="')[2].partition('"')[0]
    names = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
    near = nearest(wanted, names)
    listed = ", ".join(f"`{name}`" for name in names)
    return f"`{shortened(wanted)}`: {near or f'expected one of {listed}'}"


def _of_files(error: BaseException, target: Target) -> str:
    """The field of the config, or the file, that an error inside the library comes from."""
    if target.kind == "gguf":
        return f"cut off or damaged, or of a kind that is not supported ({first_line(error)})"
    if target.kind not in ("folder", "config") or not isinstance(error, LOW_LEVEL):
        return ""
    path = Path(target.where)
    path = path / CONFIG if path.is_dir() else path
    try:
        fields = read_json(path)
    except TargetError:
        return ""
    small = too_small(fields, (*SIZES, *HEADS)) if isinstance(fields, dict) else ""
    field = small or _unknown_value(error, fields)
    return f"{path}: {field} ({first_line(error)})" if field else ""


def _unknown_value(error: BaseException, fields: Any) -> str:
    """The field whose text is the key that the library did not find."""
    if not isinstance(error, (KeyError, AttributeError)) or not error.args:
        return ""
    message = str(error.args[0])
    for name, value in _texts(fields):
        whole = isinstance(error, KeyError) and value == message
        if whole or (isinstance(error, AttributeError) and f"'{value}'" in message):
            near = nearest(value, _known(name))
            return f"`{name}` is `{shortened(value)}`, unknown to the library" + (
                f": {near}" if near else ""
            )
    return ""


def _known(name: str) -> Iterator[str]:
    """The values that the library knows for a field, where it has a table of them."""
    if "act" in name:
        from transformers.activations import ACT2FN

        yield from ACT2FN
    if "rope" in name:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        yield from ROPE_INIT_FUNCTIONS
    if "dtype" in name:
        yield from (each for each in vars(torch) if isinstance(getattr(torch, each), torch.dtype))


def _texts(fields: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each text of a config with its field: `rope_parameters.rope_type`."""
    if isinstance(fields, Mapping):
        for name, value in fields.items():
            yield from _texts(value, f"{path}.{name}" if path else str(name))
    elif isinstance(fields, str) and fields:
        yield path, fields
