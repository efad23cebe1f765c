"""What it is
    Each call on a cache counts its positions from 0 again.

How it looks
    One forward is right; the second chunk and every decode step are wrong. Text turns to repetition
    after the prompt.

Where it comes from
    `arange(T)` where the length of the cache should be added; a cache under a new name whose length
    is read as 0; a serving layer that sends only the new tokens' positions.

What to change
    Start at the length of the cache: `arange(P, P + T)`, or pass `position_ids` yourself.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Injected,
    Trusted,
    WrongForward,
    injection,
    positions,
    schedule,
)
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject


def _from_zero(row: Row, before: int, new: int) -> list[int]:
    return list(range(new))


def inject(subject: Subject) -> Injected:
    """Count from 0 in every call on a cache, as if its length had not been added."""
    return injection.with_cached_positions(subject, _from_zero)


def _by_positions(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked and forward.subject.can.takes_positions:
        yield positions.by_rule(forward.trusted, "", _from_zero)


def _by_itself(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked and forward.subject.can.takes_positions and forward.attends:
        yield Hypothesis("whatever positions are passed", predict=_in_own_chunks)


def _in_own_chunks(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Chunk by chunk on our own store.

    A model that drops `position_ids` cannot restart within a full forward.
    """
    row = tuple(trusted.origin + position for size in spec.chunks for position in range(size))
    return schedule.scheduled_logits(trusted, spec, positions=(row,) * len(spec.tokens))


FAULT = Fault(
    name="position-restart",
    inject=inject,
    hypotheses={200: _by_positions, 215: _by_itself},
    on_cache_only=True,
)
