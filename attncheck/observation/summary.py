"""Deviations of many calls as a few parts: the same change of the same thing, with the layers,
sequences, heads, tokens and calls that have it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import final

from attncheck.core.observed_part import ObservedPart
from attncheck.observation.deviation import Deviation

CALLS = ("prefill", "chunk", "step")
AT_QUERIES = ("queries", "context", "hidden", "logits")
"""What is computed for the positions of a call, rather than kept of tokens."""


@final
@dataclass(frozen=True, kw_only=True)
class Extent:
    """All that a forward has: against it, "every" is told from "some".

    `starts` are the first positions of its calls, `documents` the first tokens of the documents
    that its rows are packed with.
    """

    layers: frozenset[int]
    rows: int
    length: int
    starts: tuple[int, ...]
    window: int | None = None
    padding: frozenset[tuple[int, int]] = frozenset()
    documents: tuple[int, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of calls that the forward consists of."""
        return frozenset(self.kind(start) for start in self.starts)

    def kind(self, start: int) -> str:
        """The kind of the call that begins here."""
        stops = [other for other in (*self.starts, self.length) if other > start]
        if not start:
            return "prefill"
        return "step" if stops and stops[0] - start == 1 else "chunk"

    def start_of(self, token: int) -> int:
        """Where the call begins that a token was computed in."""
        return max((start for start in self.starts if start <= token), default=0)


@final
@dataclass(frozen=True)
class Group:
    """One part with the deviations that it stands for, and the rule that their amounts follow."""

    part: ObservedPart
    members: tuple[Deviation, ...]
    rule: str = ""


Rule = Callable[[Deviation, Extent], float]
RULES: dict[str, Rule] = {
    "restart": lambda each, extent: -extent.start_of(each.at),
    "frozen": lambda each, extent: extent.start_of(each.at) - each.at,
    "twice": lambda each, extent: each.at,
    "not rotated": lambda each, extent: -each.at,
}
"""Amounts that depend on the token: by how many positions it is rotated."""


def grouped_parts(deviations: Iterable[Deviation], extent: Extent) -> list[Group]:
    """The parts of a failure, those with the most deviations first."""
    kinds: dict[tuple[object, ...], list[Deviation]] = defaultdict(list)
    for each in deviations:
        kinds[_key(each)].append(each)
    groups = [group for members in kinds.values() for group in _by_amount(members, extent)]
    return sorted(groups, key=lambda group: -len(group.members))


def _key(each: Deviation) -> tuple[object, ...]:
    partly = each.how in ("zero", "scaled") and bool(each.channels)
    return each.what, each.how, each.dtype, each.module, each.entering, each.base, partly


def _by_amount(members: list[Deviation], extent: Extent) -> Iterator[Group]:
    """One group where one amount or one rule holds for all, else one for all amounts."""
    first = members[0]
    amounts = {None if each.amount is None else float(f"{each.amount:.6g}") for each in members}
    if len(amounts) == 1:
        yield _group(members, extent, amounts.pop(), "")
        return
    moved = first.what == "hidden" and first.how == "other token"
    rule = _rule(members, extent) if first.how == "rotated" or moved else ""
    by_row = moved and len({(each.row, each.amount) for each in members}) == len(
        {each.row for each in members}
    )
    if rule or not (by_row or first.how in ("scaled", "other layer")):
        yield _group(members, extent, None, rule)
        return
    for amount in sorted(amounts, key=lambda each: each or 0.0):
        same = [
            each
            for each in members
            if each.amount is not None
            and amount is not None
            and float(f"{each.amount:.6g}") == amount
        ]
        yield _group(same or members, extent, amount, "")


def _rule(members: list[Deviation], extent: Extent) -> str:
    for name, rule in RULES.items():
        if name == "frozen" and extent.starts == (0,):
            continue  # at the first position of the only call nothing is rotated
        if all(each.amount == rule(each, extent) for each in members):
            return name
    times = [each.amount / each.at if each.at and each.amount else 0.0 for each in members]
    return "again" if all(each >= 1 and each.is_integer() for each in times) else ""


def _group(members: list[Deviation], extent: Extent, amount: float | None, rule: str) -> Group:
    first = members[0]
    cells = first.what == "cells"
    at = {each.at for each in members if each.at >= 0}
    slots = {each.key for each in members if each.key >= 0} if cells else at
    whens = {each.when for each in members}
    starts = {each.start for each in members}
    queries = cells or first.what in AT_QUERIES
    part = ObservedPart(
        what=first.what,
        how=first.how,
        layers=_some({each.layer for each in members if each.layer >= 0}, extent.layers),
        rows=_some({each.row for each in members if each.row >= 0}, range(extent.rows)),
        heads=_heads(members),
        slots=()
        if first.what in (*AT_QUERIES, "scores", "state")
        else _slots(slots, starts, cells),
        positions=_positions(at, whens, extent) if queries else (),
        when=tuple(kind for kind in CALLS if kind in whens) if whens < extent.kinds else (),
        amount=float(len(members)) if cells else amount,
        dtype=first.dtype,
    )
    return Group(part, tuple(members), rule)


def _some(found: set[int], every: Iterable[int]) -> tuple[int, ...]:
    """What was found, sorted; empty where it is all there is."""
    return () if found >= set(every) else tuple(sorted(found))


def _heads(members: list[Deviation]) -> tuple[int, ...]:
    found = {each.head for each in members if each.head >= 0}
    return _some(found, range(max(each.heads for each in members)))


def _slots(found: set[int], starts: set[int], cells: bool) -> tuple[int, ...]:
    """The tokens of the changed slots; empty where every token before the last call is one."""
    every = set(range(max(starts, default=0)))
    return () if not cells and every and found >= every else tuple(sorted(found))


def _positions(found: set[int], whens: set[str], extent: Extent) -> tuple[int, ...]:
    """The positions of the changed queries; empty where these calls have no other."""
    stops = (*extent.starts[1:], extent.length)
    every = {
        position
        for start, stop in zip(extent.starts, stops, strict=True)
        if extent.kind(start) in whens
        for position in range(start, stop)
    }
    return () if found >= every else tuple(sorted(found))


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in words: 3, 8..11."""
    found = sorted(set(numbers))
    runs = itertools.groupby(enumerate(found), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}..{span[-1]}" for span in spans)
