"""The syntax of code in an issue: statements that parse, what is called, and what constants are.

Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from typing import Any

PROMPT_SIGN = re.compile(r"^[ \t]*(?:>>> ?|\.\.\. ?|In \[\d+\]: ?)")
LONGEST = 1 << 20
UNKNOWN = "(text)"
"""What stands for words of a conversation that the report does not show."""


def called_name(node: ast.AST) -> str:
    """The last part of the name of what is called; empty for anything but a call."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def keywords_of(value: ast.expr) -> dict[str, ast.expr]:
    """The arguments that a dictionary holds, written with braces or as `dict(…)`."""
    if called_name(value) == "dict" and isinstance(value, ast.Call):
        return {each.arg: each.value for each in value.keywords if each.arg}
    pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
    return {str(key.value): each for key, each in pairs if isinstance(key, ast.Constant)}


def is_text(row: Any) -> bool:
    """Whether a list holds ids of tokens, and no mask."""
    ids = isinstance(row, list) and len(row) > 1 and all(type(each) is int for each in row)
    return ids and min(row) >= 0 and set(row) - {0, 1} != set()


def is_chat(value: Any) -> bool:
    """Whether a value is a conversation: turns with their roles."""
    turns = value if isinstance(value, list) else []
    return bool(turns) and all(isinstance(each, dict) and each.get("role") for each in turns)


def words_of_turn(content: Any) -> str:
    """The text of a turn, which may stand in parts."""
    parts = content if isinstance(content, list) else [content]
    texts = [each.get("text") if isinstance(each, dict) else each for each in parts]
    return " ".join(each for each in texts if isinstance(each, str)) or UNKNOWN


def of_a_model(node: ast.Call) -> bool:
    """Whether it is `model.train()` and no trainer's call of that name."""
    home = node.func.value if isinstance(node.func, ast.Attribute) else None
    name = getattr(home, "id", getattr(home, "attr", ""))
    return bool(name) and "train" not in name.lower() and not node.args


def computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """Texts and lists added and repeated, as long prompts are written."""
    if isinstance(operator, ast.Add):
        both = (isinstance(left, kind) and isinstance(right, kind) for kind in (str, list))
        return left + right if any(both) else None
    if isinstance(operator, ast.Mult):
        what, times = (left, right) if isinstance(right, int) else (right, left)
        known = isinstance(what, (str, list)) and isinstance(times, int)
        if known and 0 < times * len(what) <= LONGEST:
            return what * times
    return None


def statements(block: str) -> Iterator[ast.stmt]:
    """The statements of a block, without prompts of a shell; of a broken one those that parse."""
    lines = [PROMPT_SIGN.sub("", line) for line in block.split("\n")]
    lines = ["" if line.lstrip().startswith(("!", "%", "$")) else line for line in lines]
    while lines:
        try:
            yield from ast.parse(_dedented(lines)).body
            return
        except (SyntaxError, ValueError, RecursionError) as error:
            at = getattr(error, "lineno", None) or 1
        broken = min(max(at, 1), len(lines))
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            yield from ast.parse(_dedented(lines[: broken - 1])).body
        lines = lines[broken:]


def _dedented(lines: list[str]) -> str:
    first = next((line for line in lines if line.strip()), "")
    margin = len(first) - len(first.lstrip())
    return "\n".join(line[margin:] if line[:margin].isspace() else line for line in lines)
