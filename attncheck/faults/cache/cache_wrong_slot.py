"""What it is
    Keys are written to, or read from, slots of other tokens.

How it looks
    Chunks on a cache differ although masks and positions are right; ring buffers show it only after
    they wrap around.

Where it comes from
    Slot and position taken for one number; a ring buffer that is read without being put in order;
    `cache_position` that restarts.

What to change
    Write at the slot that the number of stored tokens gives, and put ring buffers in order before
    the mask is applied.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, schedule, store_edits
from attncheck.model.caches import VALUES, CachedTensor
from attncheck.model.subject import Subject

BOTH = 2


def inject(subject: Subject) -> Injected:
    """Shift all values by one slot against their keys.

    Raises:
        CannotInject: the cache holds one latent for both, or neither.
    """
    held = {each.name in VALUES: each.tensor for each in store_edits.needs_keys(subject)}
    if len(held) == BOTH and torch.equal(*held.values()):
        raise CannotInject("keys and values are one latent, which cannot come apart")

    def change(each: CachedTensor, filled: int) -> None:
        if each.name in VALUES:
            slots = each.tensor[:, :, :filled]
            slots.copy_(slots.roll(1, 2))

    return store_edits.at_cached(subject, change)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if store_edits.edits_store(forward):
        yield store_edits.stored_everywhere("values beside their keys", _roll_values)
        yield store_edits.stored_everywhere("keys beside their values", _roll_keys)


def _roll_values(held: schedule.Held) -> None:
    held.value_BGSD[:, :, held.first :] = held.value_BGSD[:, :, held.first :].roll(1, 2)


def _roll_keys(held: schedule.Held) -> None:
    held.key_BGSD[:, :, held.first :] = held.key_BGSD[:, :, held.first :].roll(1, 2)


FAULT = Fault(
    name="cache-wrong-slot", inject=inject, hypotheses={410: _hypotheses}, on_cache_only=True
)
