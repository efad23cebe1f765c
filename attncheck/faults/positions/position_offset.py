"""What it is
    Calls on a cache count their positions from a few too far or too near.

How it looks
    Chunks on a cache differ slightly from one forward; rotary models hide it when the prefill has
    the same offset.

Where it comes from
    The length of the cache read after it was updated; a prefix or an image counted twice; pad + 1
    rules that are applied in one path only.

What to change
    Read the length of the cache before the new keys are stored, and apply the same rule in every
    path.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, injection, positions
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject

OFFSETS = (1, -1, 2, -2, 3, -3, 4, -4)


def _moved(offset: int, row: Row, before: int, new: int) -> list[int]:
    return [position + offset for position in row[before : before + new]]


def inject(subject: Subject) -> Injected:
    """Count one too far in every call on a cache."""
    return injection.with_cached_positions(subject, partial(_moved, OFFSETS[0]))


def _hypotheses(forward: WrongForward, padding: bool = False) -> Iterator[Hypothesis]:
    if not forward.chunked or not forward.subject.can.takes_positions:
        return
    spec, context = forward.spec, forward.subject.facts.context
    for offset in OFFSETS:
        fits = context is None or spec.length + offset <= context
        if fits and spec.chunks[0] + offset >= 0:
            rule = partial(_moved, offset)
            yield positions.by_rule(forward.trusted, f"by {offset:+d}", rule, padding)


def _with_padding(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.padded:
        yield from _hypotheses(forward, padding=True)


FAULT = Fault(
    name="position-offset",
    inject=inject,
    hypotheses={210: _hypotheses, 225: _with_padding},
    on_cache_only=True,
)
