"""What it is
    Calls read keys and values from an earlier state of the cache.

How it looks
    The second turn answers the first one; results depend on what ran before.

Where it comes from
    A cache copied shallowly; an update that returns the old tensors; a static cache that was not
    reset.

What to change
    Return the updated tensors from `update`, copy caches deeply, and reset static ones between
    conversations.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, schedule, store_edits
from attncheck.model.caches import CachedTensor
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let the newest slot hold what the one before it holds, as if its token were never written."""

    def change(each: CachedTensor, filled: int) -> None:
        each.tensor[:, :, filled - 1] = each.tensor[:, :, max(0, filled - 2)]

    return store_edits.at_cached(subject, change)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if store_edits.edits_store(forward):
        yield store_edits.stored_everywhere("", _stale_newest)


def _stale_newest(held: schedule.Held) -> None:
    before = -min(2, held.key_BGSD.shape[2] - held.first)
    for tensor in (held.key_BGSD, held.value_BGSD):
        tensor[:, :, -1] = tensor[:, :, before]


FAULT = Fault(name="cache-stale", inject=inject, hypotheses={405: _hypotheses}, on_cache_only=True)
