"""Parse what the user typed into a target. Loads neither torch nor transformers.

`org/name[@revision]`, a folder, a `.gguf` file, `builtin:NAME`, `config:TYPE`,
`path/to/file.py:factory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from attncheck.core.errors import TargetError, unknown

Kind = Literal["hub", "folder", "gguf", "builtin", "config", "factory", "adapter"]

BUILTINS = {
    "gqa": "rotary positions, 4 query heads on 2 KV heads (the default)",
    "mha": "learned absolute positions, every head with its own keys",
    "window": "sliding windows shorter than the input, every second layer full",
    "alibi": "linear biases instead of positions",
    "moe": "four experts, two for each token",
    "broken-mask": "gqa with a causal mask that lets each token read the next one",
    "broken-positions": "gqa whose positions start again at every cached call",
}
DEFAULT = "builtin:gqa"


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """One parsed target: `where` is its id, path or name, `attribute` the name of the factory."""

    text: str
    kind: Kind
    where: str
    revision: str | None = None
    attribute: str = ""


def is_glob(text: str) -> bool:
    """Whether a target stands for many: `config:*`, `config:qwen*`, `config:seq2seq/*`."""
    return text.startswith("config:") and any(sign in text for sign in "*?[")


def parse(text: str) -> Target:
    """Tell what kind of target a text is.

    Raises:
        TargetError: it is none of them; what was expected and the nearest valid name are said.
    """
    if text.startswith("builtin:"):
        return _builtin(text)
    if text.startswith("config:"):
        return Target(text=text, kind="config", where=text.removeprefix("config:"))
    path, _, attribute = text.rpartition(":")
    if path.endswith(".py"):
        return _factory(text, path, attribute)
    if text.endswith(".gguf"):
        return _file(text)
    return _folder_or_hub(text)


def _builtin(text: str) -> Target:
    name = text.removeprefix("builtin:")
    if name not in BUILTINS:
        raise TargetError(f"{text}: {unknown('built-in model', name, BUILTINS)}")
    return Target(text=text, kind="builtin", where=name)


def _factory(text: str, path: str, attribute: str) -> Target:
    if not Path(path).is_file():
        raise TargetError(f"{text}: no such file `{path}`")
    if not attribute.isidentifier():
        raise TargetError(
            f"{text}: expected the name of a function after the colon, got `{attribute}`"
        )
    return Target(text=text, kind="factory", where=path, attribute=attribute)


def _file(text: str) -> Target:
    if not Path(text).is_file():
        raise TargetError(f"{text}: no such file")
    return Target(text=text, kind="gguf", where=text)


def _folder_or_hub(text: str) -> Target:
    if Path(text).is_dir():
        if (Path(text) / "adapter_config.json").is_file() and not (
            Path(text) / "config.json"
        ).is_file():
            return Target(text=text, kind="adapter", where=text)
        if not (Path(text) / "config.json").is_file():
            raise TargetError(f"{text}: the folder holds no config.json")
        return Target(text=text, kind="folder", where=text)
    if (
        Path(text).exists()
        or text.startswith((".", "/", "~"))
        or text.endswith((".py", ".json", ".safetensors", ".bin"))
    ):
        what = (
            "not a folder, a .gguf file or file.py:factory"
            if Path(text).exists()
            else "no such file or folder"
        )
        raise TargetError(f"{text}: {what}")
    name, _, revision = text.partition("@")
    if not name or name.count("/") > 1:
        raise TargetError(f"{text}: no such folder, and not a hub id (`org/name`)")
    return Target(text=text, kind="hub", where=name, revision=revision or None)
