"""Habits in the code of an issue that mislead its author, read off its syntax: a cache made once
for many prompts, and numbers taken from positions of padding. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

CACHES = ("past_key_values", "cache", "past")
OUTPUTS = ("logits", "last_hidden_state", "hidden_states")
GROWING = ("append", "extend", "crop", "reset")
"""Methods in a loop that keep text and cache together, or empty the cache."""


def habits(statement: ast.stmt) -> dict[str, Any]:
    """The settings of an issue that these habits stand for."""
    found: dict[str, Any] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.For) and _reuses_a_cache(node):
            found["reused_cache"] = True
        if kind := _pooled(node):
            found["pooled"] = kind
    return found


def _reuses_a_cache(loop: ast.For) -> bool:
    """Whether every turn of a loop reads its own text on a cache that is made before the loop."""
    body = [node for each in loop.body for node in ast.walk(each)]
    calls = [node for node in body if isinstance(node, ast.Call)]
    grown = any(isinstance(node, ast.AugAssign) for node in body)
    if grown or any(getattr(each.func, "attr", "") in GROWING for each in calls):
        return False
    made = {name for node in body if isinstance(node, ast.Assign) for name in _names(node.targets)}
    own = set(_names([loop.target]))
    passed = (each.value for call in calls for each in call.keywords if each.arg in CACHES)
    read = set(_names(loop.body))
    caches = {each.id for each in passed if isinstance(each, ast.Name)}  # no copy of one
    return bool(own & read) and bool(caches - made - own)


def _names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    inner = (each for node in nodes for each in ast.walk(node))
    yield from (each.id for each in inner if isinstance(each, ast.Name))


def _pooled(node: ast.AST) -> str:
    """`mean` where outputs are averaged over all positions, `last` where the last one is taken."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        where = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "dim")]
        positions = any(isinstance(each, ast.Constant) and each.value in (1, -2) for each in where)
        return "mean" if node.func.attr == "mean" and positions and _output(node.func.value) else ""
    if (
        isinstance(node, ast.Subscript)
        and _output(node.value)
        and isinstance(node.slice, ast.Tuple)
    ):
        parts = node.slice.elts
        last = len(parts) > 1 and ast.unparse(parts[1]) == "-1"
        return "last" if last and isinstance(parts[0], ast.Slice) else ""
    return ""


def _output(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr in OUTPUTS for each in ast.walk(node))
