"""A list of targets in a file, one a line, each with settings of its own:
`org/other@v2 dtype=bfloat16 layers=4`, `./checkpoint attn=eager random-init`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import AttncheckError, SuiteError, UsageError, unknown
from attncheck.core.settings import NUMBERS, SWITCHES, Settings
from attncheck.targets.target import is_glob, parse, seen_from_here

NAMES = tuple(each.name.replace("_", "-") for each in fields(Settings) if each.name != "tp")
TRUTHS = {"true": True, "false": False}


@final
@dataclass(frozen=True, kw_only=True)
class ListedTarget:
    """One line: a target, the settings that it changes, and `FILE:LINE`."""

    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


def read_targets(file: Path) -> tuple[ListedTarget, ...]:
    """The targets of a list. A path is relative to the list; `#` begins a comment.

    Raises:
        SuiteError: with `FILE:LINE`, what stands there and what was expected.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "not UTF-8 text"
        raise SuiteError(f"{file}: cannot be read: {reason}") from error
    found = tuple(_targets(file, text))
    if not found:
        raise SuiteError(f"{file}: no targets: expected one a line")
    return found


def _targets(file: Path, text: str) -> Iterator[ListedTarget]:
    seen: dict[tuple[str, str], str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}:{number}"
        try:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            found = _target(words, file.parent, where)
        except (AttncheckError, ValueError) as error:
            raise SuiteError(f"{where}: {error}") from error
        key = (found.target, repr(sorted(found.settings.items())))
        if key in seen:
            raise SuiteError(f"{where}: {found.target} with these settings stands at {seen[key]}")
        seen[key] = where
        yield found


def _target(words: list[str], home: Path, where: str) -> ListedTarget:
    target = seen_from_here(home, words[0])
    given = dict(_setting(word) for word in words[1:])
    Settings(**given)
    text = target if is_glob(target) else parse(target).text
    return ListedTarget(target=text, settings=given, where=where)


def _setting(word: str) -> tuple[str, Any]:
    """The name and the value of NAME=VALUE, or of a switch.

    Raises:
        UsageError: no such setting, or no value that it can have.
    """
    name, equals, text = word.partition("=")
    name = name.removeprefix("--").replace("_", "-")
    if name not in NAMES:
        raise UsageError(unknown("setting", name, NAMES))
    key = name.replace("-", "_")
    if key in SWITCHES:
        return key, TRUTHS.get(text, text) if equals else True
    if not equals:
        raise UsageError(f"{name}: expected {name}=VALUE")
    whole = key in NUMBERS and text.removeprefix("-").isdigit()
    return key, int(text) if whole else text
