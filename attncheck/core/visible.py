"""Text of checkpoints, models and exceptions made safe to show: no sign in it moves a cursor, hides
or reorders what stands beside it. Standard library only.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
KEPT = "\n\t"
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of signs that terminals obey or nobody sees: controls, formats such as a change of
direction, halves of pairs, and separators of lines.
"""
LONGEST = 100


def visible(text: str) -> str:
    """The text with the escape sequence of every such sign in its place."""
    if text.isprintable():
        return text
    return "".join(_escaped(sign) if _unseen(sign) else sign for sign in text)


def one_line(text: str) -> str:
    """The text on one line, with single blanks."""
    return visible(" ".join(text.split()))


def shortened(text: str, longest: int = LONGEST) -> str:
    """The text on one line; of a long one its beginning and its length."""
    line = one_line(text)
    return line if len(line) <= longest else f"{line[:longest]}… ({len(text)} characters)"


def made_visible(part: T) -> T:
    """A part of a report with all its texts visible; numbers stay."""
    made: Any = part
    if isinstance(part, str):
        made = visible(part) if type(part) is str else part
    elif isinstance(part, Mapping):
        made = {made_visible(key): made_visible(value) for key, value in part.items()}
    elif isinstance(part, (tuple, list)):
        if part and not isinstance(part[0], (int, float)):
            made = type(part)(map(made_visible, part))
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        made = _with_visible_fields(part)
    result: T = made
    return result


def _with_visible_fields(part: Any) -> Any:
    before = {each.name: getattr(part, each.name) for each in dataclasses.fields(part) if each.init}
    after = {name: made_visible(value) for name, value in before.items()}
    changed = {name: value for name, value in after.items() if value != before[name]}
    return dataclasses.replace(part, **changed) if changed else part


def _unseen(sign: str) -> bool:
    return sign not in KEPT and unicodedata.category(sign) in UNSEEN


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")
