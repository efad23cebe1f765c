"""The shortest rule that describes a set of changed cells: which tokens queries read, or do not
read, against the specification.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import final

from attncheck.observation.deviation import Deviation
from attncheck.observation.documents import CellSet, shifted_documents
from attncheck.observation.summary import Extent, ranges

FEW = 4


@final
@dataclass(frozen=True)
class CellRule:
    """A description of cells in words, and the name of its kind: "" where it has none."""

    text: str
    kind: str = ""


def cell_rule(members: tuple[Deviation, ...], extent: Extent) -> CellRule:
    """The shortest rule for cells of one kind (visible, empty, hidden, missing, twice)."""
    by_row: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for each in members:
        by_row[each.row].add((each.at, each.key))
    cells = frozenset(cell for found in by_row.values() for cell in found)
    how = members[0].how
    if how == "missing":
        return CellRule(f"no slot holds {_tokens({key for _, key in cells})}", "missing")
    if how == "empty":
        return CellRule("slots that hold no token yet can be read", how)
    if how == "twice":
        return CellRule(f"{_tokens({key for _, key in cells})} can be read twice")
    late = shifted_documents(cells, how, extent)
    if late:
        count = f"{abs(late)} token{'s' if abs(late) > 1 else ''}"
        return CellRule(f"documents begin {count} {'late' if late > 0 else 'early'}", "documents")
    return (_visible if how == "visible" else _hidden)(cells, by_row, extent)


def _tokens(keys: set[int]) -> str:
    return f"token{'s' if len(keys) > 1 else ''} {ranges(keys)}"


def _visible(cells: CellSet, by_row: dict[int, set[tuple[int, int]]], extent: Extent) -> CellRule:
    padded = all((row, key) in extent.padding for row in by_row for _, key in by_row[row])
    if padded:
        return CellRule("padding can be read", "padding")
    distance = {query - key for query, key in cells}
    if max(distance) < 0:
        return _later(cells, -min(distance), extent)
    window = extent.window
    if window and min(distance) >= window:
        return _beyond(cells, max(distance), window, extent)
    return _block(cells, "can be read")


def _later(cells: CellSet, furthest: int, extent: Extent) -> CellRule:
    every = {
        (query, key)
        for query in {query for query, _ in cells}
        for key in range(query + 1, _stop(query, extent))
    }
    if cells == every and furthest > 1:
        return CellRule("queries read every later token of their call", "later")
    by = {(query, key) for query, key in every if key - query <= furthest}
    if cells == by:
        ahead = "the next token" if furthest == 1 else f"the next {furthest} tokens"
        return CellRule(f"queries read {ahead}", "off by one" if furthest == 1 else "later")
    return _block(cells, "can be read", "later")


def _stop(query: int, extent: Extent) -> int:
    return min(start for start in (*extent.starts, extent.length) if start > query)


def _beyond(cells: CellSet, furthest: int, window: int, extent: Extent) -> CellRule:
    """Tokens beyond the window: all that the layer still holds, or a window of another size."""
    oldest: dict[int, int] = {}
    for query, key in cells:
        start = extent.start_of(query)
        oldest[start] = min(key, oldest.get(start, key))
    whole = {
        (query, key)
        for query in {query for query, _ in cells}
        for key in range(oldest[extent.start_of(query)], query - window + 1)
    }
    if cells == whole and furthest > window:
        return CellRule(f"the window of {window} is ignored", "window ignored")
    return CellRule(
        f"the window is {furthest + 1} tokens where {window} are specified", "window size"
    )


def _hidden(cells: CellSet, by_row: dict[int, set[tuple[int, int]]], extent: Extent) -> CellRule:
    padding = _other_padding(by_row, extent) if extent.padding else None
    if padding is not None:
        return padding
    starts = {query: extent.start_of(query) for query, _ in cells}
    if all(key > query - starts[query] for query, key in cells) and any(
        starts[query] for query in starts
    ):
        every = {
            (query, key) for query in starts for key in range(query - starts[query] + 1, query + 1)
        }
        if cells == every and not extent.window:
            return CellRule("the causal mask begins at the first query of each call", "top left")
    several = len(set(starts.values())) < len(starts)  # one query alone shows no triangle
    if several and cells == _after_place(starts, 1 + max(key for _, key in cells)):
        text = "query i of a call reads only the first i + 1 tokens, as under a causal mask"
        return CellRule(text, "causal")
    if cells == {(query, key) for query in starts for key in range(starts[query] + 1, query + 1)}:
        return CellRule("queries read only what the first query of their call reads")
    if all(query == key for query, key in cells):
        return CellRule("queries do not read their own token")
    nearest = min(query - key for query, key in cells)
    whole = {(query, key) for query in starts for key in range(query - nearest + 1)}
    if nearest and cells == whole:
        return CellRule(f"queries read only the last {nearest} tokens", "window size")
    if (
        extent.window
        and 0 < nearest < extent.window
        and all(query - key >= nearest for query, key in cells)
    ):
        return CellRule(
            f"the window is {nearest} tokens where {extent.window} are specified", "window size"
        )
    return _block(cells, "cannot be read")


def _other_padding(by_row: dict[int, set[tuple[int, int]]], extent: Extent) -> CellRule | None:
    if all(_is_whole(by_row[row], _real(row, extent), row, extent) for row in by_row):
        return CellRule("no query can read a token that is no padding", "inverted")
    other = _padding_of(by_row, extent)
    if other is None:
        return None
    return CellRule(f"the padding mask is that of sequence {other}", "other sequence")


def _after_place(starts: dict[int, int], tokens: int) -> CellSet:
    """What a causal mask over the queries of each call hides of the first `tokens`."""
    return frozenset(
        (query, key) for query, start in starts.items() for key in range(query - start + 1, tokens)
    )


def _real(row: int, extent: Extent) -> frozenset[int]:
    """The tokens of a sequence that are no padding."""
    return frozenset(k for k in range(extent.length) if (row, k) not in extent.padding)


def _is_whole(cells: set[tuple[int, int]], keys: frozenset[int], row: int, extent: Extent) -> bool:
    """Whether every real query of a sequence has a cell for each of these keys, up to its own token
    or beyond it.
    """
    every = {(query, key) for query in _real(row, extent) for key in keys}
    return cells in (every, {(query, key) for query, key in every if key <= query})


def _padding_of(by_row: dict[int, set[tuple[int, int]]], extent: Extent) -> int | None:
    """The sequence whose padding is what all others cannot read, if there is one."""
    padded = (
        frozenset(key for row, key in extent.padding if row == each) for each in range(extent.rows)
    )
    for other, padding in enumerate(padded):
        lost = {row: padding & _real(row, extent) for row in range(extent.rows)}
        if {row for row, keys in lost.items() if keys} == set(by_row) and all(
            _is_whole(by_row[row], lost[row], row, extent) for row in by_row
        ):
            return other
    return None


def _block(cells: CellSet, verb: str, kind: str = "") -> CellRule:
    """A block of queries and keys, or the cells one by one, or their number."""
    queries, keys = {query for query, _ in cells}, {key for _, key in cells}
    whole = {(query, key) for query in queries for key in keys if key <= query}
    if cells == whole or cells == {(query, key) for query in queries for key in keys}:
        return CellRule(f"{_tokens(keys)} {verb} by the queries at {ranges(queries)}", kind)
    if len(cells) <= FEW:
        pairs = ", ".join(f"{key} by the query at {query}" for query, key in sorted(cells))
        return CellRule(f"token {pairs} {verb}", kind)
    return CellRule(
        f"{len(cells)} cells {verb} against the specification (queries {ranges(queries)}, tokens "
        f"{ranges(keys)})",
        kind,
    )
