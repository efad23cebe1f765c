"""What it is
    All tokens of a call on a cache share one position.

How it looks
    Single steps look almost right, longer chunks on a cache do not; generation loops.

Where it comes from
    A step counter that is not advanced; `position_ids[:, -1:]` used for several tokens.

What to change
    Advance positions with every token, also inside a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, injection, positions
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject


def _at_last_cached(row: Row, before: int, new: int) -> list[int]:
    return [row[before - 1]] * new


def _at_first_new(row: Row, before: int, new: int) -> list[int]:
    return [row[before]] * new


RULES = {"at the last cached position": _at_last_cached, "at the first new position": _at_first_new}


def inject(subject: Subject) -> Injected:
    """Give every token of a call on a cache the position of the last cached one."""
    return injection.with_cached_positions(subject, _at_last_cached)


def _hypotheses(forward: WrongForward, padding: bool = False) -> Iterator[Hypothesis]:
    if forward.chunked and forward.subject.can.takes_positions:
        for parameter, rule in RULES.items():
            yield positions.by_rule(forward.trusted, parameter, rule, padding)


def _with_padding(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.padded:
        yield from _hypotheses(forward, padding=True)


FAULT = Fault(
    name="position-frozen",
    inject=inject,
    hypotheses={205: _hypotheses, 220: _with_padding},
    on_cache_only=True,
)
