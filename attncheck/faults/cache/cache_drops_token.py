"""What it is
    The newest key and value of each call are lost from the cache.

How it looks
    The first call is right; each later one misses a token, first of all at the chunk boundary.

Where it comes from
    Slices such as `[:-1]` left from teacher forcing; a window that cuts before it appends; a
    rollback by one too many.

What to change
    Append all new keys before anything is cut, and check that the cache grows by T with every call.

Axes: B batch, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    View,
    WrongForward,
    schedule,
    store_edits,
)
from attncheck.model.caches import CachedTensor
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Zero the newest key/value slot of every layer before each call on the cache."""

    def change(each: CachedTensor, filled: int) -> None:
        each.tensor[:, :, filled - 1] = 0

    return store_edits.at_cached(subject, change)


def _zeroed(forward: WrongForward) -> Iterator[Hypothesis]:
    if store_edits.edits_store(forward):
        yield store_edits.stored_everywhere("zeroed", _zero_newest)


def _zero_newest(held: schedule.Held) -> None:
    held.key_BGSD[:, :, -1] = 0
    held.value_BGSD[:, :, -1] = 0


def _hidden(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked:
        yield Hypothesis("hidden", Change(allowed=_without_ends))


def _without_ends(allowed: Tensor, view: View) -> Tensor:
    """The newest key of every earlier call is hidden."""
    ends = torch.tensor(view.spec.chunks, device=allowed.device).cumsum(0) - 1
    allowed = allowed.clone()
    allowed[..., ends[ends < view.start]] = False
    return allowed


FAULT = Fault(
    name="cache-drops-token",
    inject=inject,
    hypotheses={400: _zeroed, 435: _hidden},
    on_cache_only=True,
)
