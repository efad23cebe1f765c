"""Every single-place change of a Python source that a test of its behaviour should notice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
EXCHANGED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
RENAMED = {"max": "min", "min": "max", "any": "all", "all": "any", "amax": "amin", "amin": "amax"}
LARGER = 1000


@dataclass(frozen=True)
class Mutant:
    """One change: the text at [start, stop) of `file` becomes `new`. `line` counts from 1."""

    file: str
    line: int
    start: int
    stop: int
    old: str
    new: str

    @property
    def change(self) -> str:
        """The old and the new text in one line."""
        return f"{one_line(self.old)} -> {one_line(self.new)}"

    @property
    def name(self) -> str:
        """What stays the same when lines above it are added: the file and the change."""
        return f"{self.file}: {self.change}"

    def applied(self, source: str) -> str:
        """The source with the change in it.

        Raises:
            ValueError: the source does not hold the old text there.
        """
        if source[self.start : self.stop] != self.old:
            raise ValueError(f"{self.file} has changed at line {self.line}")
        return source[: self.start] + self.new + source[self.stop :]


def one_line(text: str) -> str:
    """A text with every stretch of blanks as one."""
    return " ".join(text.split())


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of one source, in the order of the text."""
    starts = _line_starts(source)
    found = set()
    for node in _behaviour(ast.parse(source)):
        start, stop = (
            starts[line - 1] + len(source.splitlines()[line - 1].encode()[:column].decode())
            for line, column in (
                (node.lineno, node.col_offset),
                (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
            )
        )
        old = source[start:stop]
        for new in _changed(node):
            found.add(Mutant(file, node.lineno, start, stop, old, new))
    return sorted(found, key=lambda each: (each.start, each.stop, each.new))


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _behaviour(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that run: no annotation, no decorator, no default of a field, no f-string."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _expressions(child.value)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for each in child.body:
                yield from _behaviour(ast.Module([each], []))
        elif isinstance(child, ast.expr):
            yield from _expressions(child)
        elif not isinstance(child, (ast.arguments, ast.Import, ast.ImportFrom)):
            yield from _behaviour(child)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _expressions(child)


def _changed(node: ast.expr) -> Iterator[str]:
    for kind, change in CHANGES.items():
        if isinstance(node, kind):
            yield from change(node)


def _compare(node: ast.Compare) -> Iterator[str]:
    if len(node.ops) == 1:
        operator = FLIPPED[type(node.ops[0])]
        yield f"({ast.unparse(node.left)} {operator} {ast.unparse(node.comparators[0])})"


def _boolean(node: ast.BoolOp) -> Iterator[str]:
    other = " or " if isinstance(node.op, ast.And) else " and "
    yield "(" + other.join(f"({ast.unparse(each)})" for each in node.values) + ")"


def _negated(node: ast.UnaryOp) -> Iterator[str]:
    if isinstance(node.op, (ast.Not, ast.Invert)):
        yield f"({ast.unparse(node.operand)})"


def _binary(node: ast.BinOp) -> Iterator[str]:
    operator = EXCHANGED.get(type(node.op))
    texts = isinstance(node.left, (ast.JoinedStr, ast.Constant)) and isinstance(
        getattr(node.left, "value", ""), str
    )
    if operator and not texts:
        yield f"({ast.unparse(node.left)} {operator} {ast.unparse(node.right)})"


def _constant(node: ast.Constant) -> Iterator[str]:
    value = node.value
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, float):
        yield repr(value * LARGER if value else 1.0)
    elif isinstance(value, int):
        yield repr(value + 1)


def _call(node: ast.Call) -> Iterator[str]:
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if name not in RENAMED:
        return
    arguments = ast.unparse(node)[len(ast.unparse(function)) :]
    if isinstance(function, ast.Name):
        yield f"{RENAMED[name]}{arguments}"
    elif isinstance(function, ast.Attribute):
        yield f"{ast.unparse(function.value)}.{RENAMED[name]}{arguments}"


def _choice(node: ast.IfExp) -> Iterator[str]:
    yield f"({ast.unparse(node.orelse)})"
    yield f"({ast.unparse(node.body)})"


CHANGES: dict[type[ast.expr], Callable[..., Iterator[str]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _negated,
    ast.BinOp: _binary,
    ast.Constant: _constant,
    ast.Call: _call,
    ast.IfExp: _choice,
}
