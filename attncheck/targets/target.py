"""Parse what the user typed into a target. Loads neither torch nor transformers.

`org/name[@revision]`, a folder, a `.gguf` file, `builtin:NAME`, `config:TYPE`,
`path/to/file.py:factory`, the URL of a server, `RUNTIME:FOLDER`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from attncheck.core.errors import TargetError, nearest, unknown
from attncheck.core.visible import shortened, visible

Kind = Literal[
    "hub", "folder", "gguf", "builtin", "config", "factory", "adapter", "server", "runtime"
]

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
EXPECTED = "a hub id, a folder, a .gguf file, builtin:NAME, config:TYPE or file.py:factory"
LONGEST = 4096
SCHEMES = ("builtin:", "config:")
URLS = ("http://", "https://")
PAGES = ("huggingface.co/", "hf.co/")
"""Pages of the hub, which are no servers."""
RUNTIMES = ("mlx", "ct2")
"""Runtimes beside transformers that this package opens."""
ENGINES = "attncheck.engines"
"""The entry points of others."""
FACTORY = re.compile(r"\.py:[^/:]*$")
FILES = (".py", ".json", ".safetensors", ".bin", ".gguf")
HUB = re.compile(r"(?!.*(?:--|\.\.))(?:[\w][\w.-]{0,95}/)?[\w][\w.-]{0,95}(?<![.-])", re.ASCII)
"""What the hub takes for a name: letters, digits, `-`, `_` and `.`, at most one slash."""


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """One parsed target: `where` is its id, path, name or URL, `attribute` the name of the factory
    or of the runtime.
    """

    text: str
    kind: Kind
    where: str
    revision: str | None = None
    attribute: str = ""


def is_glob(text: str) -> bool:
    """Whether a target stands for many: `config:*`, `config:qwen*`, `config:seq2seq/*`."""
    return text.startswith("config:") and any(sign in text for sign in "*?[")


def canonical(text: str) -> str:
    """One spelling of a target for keys and reports: `model.py:make` for `./model.py:make`."""
    path, colon, attribute = text.rpartition(":") if FACTORY.search(text) else (text, "", "")
    plain = os.path.normpath(path)
    named = text.startswith(("builtin:", "config:", *URLS)) or not path or "\0" in text
    return text if named or plain == path or not _exists(plain) else f"{plain}{colon}{attribute}"


def seen_from_here(home: Path, text: str) -> str:
    """A target that stands in a file of the folder `home`, whose paths are relative to it."""
    path, colon, attribute = text.rpartition(":")
    file = path if path.endswith(".py") else text
    if text.startswith(SCHEMES) or os.path.isabs(file) or not _exists(str(home / file)):
        return text
    near = os.path.relpath(home / file)
    return f"{near}{colon}{attribute}" if file == path else near


def parse(text: str) -> Target:
    """Tell what kind of target a text is.

    Raises:
        TargetError: it is none of them; what was expected and the nearest valid name are said.
    """
    if not text.strip():
        raise TargetError(f"a target is empty: expected {EXPECTED}")
    if len(text) > LONGEST or visible(text) != text or "\n" in text or "\t" in text:
        raise TargetError(f"{shortened(text)}: expected {EXPECTED}")
    text = canonical(text)
    if text.startswith("builtin:"):
        return _builtin(text)
    if text.startswith("config:"):
        return _config(text)
    if _is_url(text):
        return Target(text=text, kind="server", where=text.rstrip("/"))
    if _is_runtime(text.partition(":")[0]):
        return _runtime(text)
    path, _, attribute = text.rpartition(":")
    if path.endswith(".py"):
        return _factory(text, path, attribute)
    if text.endswith(".gguf"):
        return _file(text)
    return _folder_or_hub(text)


def is_engine(text: str) -> bool:
    """Whether a target names a server or a runtime beside transformers."""
    return _is_url(text) or (":" in text and _is_runtime(text.partition(":")[0]))


def _is_url(text: str) -> bool:
    """Whether a text is the URL of a server; a page of the hub is none."""
    return text.startswith(URLS) and not text.partition("://")[2].startswith(PAGES)


def _is_runtime(name: str) -> bool:
    if name in RUNTIMES:
        return True
    if not name.isidentifier():
        return False
    from importlib.metadata import entry_points

    return any(entry.name == name for entry in entry_points(group=ENGINES))


def _runtime(text: str) -> Target:
    name, colon, where = text.partition(":")
    if not colon or not where.strip():
        raise TargetError(f"{text}: expected {name}:FOLDER")
    return Target(text=text, kind="runtime", where=where, attribute=name)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that is too long for this system
        return False


def _builtin(text: str) -> Target:
    name = text.removeprefix("builtin:")
    if name not in BUILTINS:
        raise TargetError(f"{text}: {unknown('built-in model', name, BUILTINS)}")
    return Target(text=text, kind="builtin", where=name)


def _config(text: str) -> Target:
    where = text.removeprefix("config:")
    if not where.strip("/ "):
        raise TargetError(f"{text}: expected a config type (`config:llama`) or a config.json")
    return Target(text=text, kind="config", where=where)


def _factory(text: str, path: str, attribute: str) -> Target:
    if not Path(path).is_file():
        raise TargetError(f"{text}: no such file `{path}`")
    if not attribute.isidentifier():
        raise TargetError(
            f"{text}: expected the name of a function after the colon, got `{attribute}`"
        )
    return Target(text=text, kind="factory", where=path, attribute=attribute)


def _file(text: str) -> Target:
    if Path(text).is_dir():
        raise TargetError(f"{text}: is a folder, expected a .gguf file")
    if not Path(text).is_file():
        raise TargetError(f"{text}: no such file")
    return Target(text=text, kind="gguf", where=text)


def _folder_or_hub(text: str) -> Target:
    folder = Path(text)
    if folder.is_dir():
        if (folder / "config.json").is_file():
            return Target(text=text, kind="folder", where=text)
        if (folder / "adapter_config.json").is_file():
            return Target(text=text, kind="adapter", where=text)
        raise TargetError(f"{text}: the folder holds no config.json")
    if folder.is_file() and text.endswith(".py"):
        raise TargetError(f"{text}: expected {text}:FACTORY, a function that returns the model")
    if _exists(text):
        raise TargetError(f"{text}: not a folder, a .gguf file or file.py:factory")
    if text.startswith((".", "/", "~")) or text.endswith(FILES):
        raise TargetError(f"{text}: no such file or folder")
    name, at, revision = text.partition("@")
    if not HUB.fullmatch(name) or (at and not revision.strip()):
        kind = text.partition(":")[0]
        hint = nearest(f"{kind}:", SCHEMES) if ":" in text else ""
        raise TargetError(
            f"{text}: no such folder, and not a hub id (`org/name`)" + (f": {hint}" if hint else "")
        )
    return Target(text=text, kind="hub", where=name, revision=revision or None)
