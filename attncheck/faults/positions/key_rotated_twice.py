"""What it is
    Cached keys are rotated again when they are read.

How it looks
    The first chunk is right; every later call is wrong, and the more so the further back a key is.

Where it comes from
    Keys stored after rotation and rotated on reading; a re-rotating cache (attention sinks) on top
    of a model that rotates by itself.

What to change
    Store keys either before or after rotation and rotate once.

Axes: B batch, G key/value heads, S cached positions, D head width, R rotary pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from attncheck.attention.rope import cos_sin, inv_freq_buffers, rotate
from attncheck.core.errors import CannotInject, Unsupported
from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Injected,
    Trusted,
    WrongForward,
    schedule,
    store_edits,
    words,
)
from attncheck.model.caches import KEYS, CachedTensor
from attncheck.model.subject import Subject

USUAL_BASE = 10000.0


def inject(subject: Subject) -> Injected:
    """Rotate every cached key by its slot before each call on the cache."""
    keys = [each for each in store_edits.needs_keys(subject) if each.name in KEYS]
    subject.can.reads_positions.require(CannotInject)
    if not keys or any(each.tensor.shape[-1] % 2 for each in keys):
        raise CannotInject("the cached keys have no even width to rotate")

    def change(each: CachedTensor, filled: int) -> None:
        if each.name in KEYS:
            inv_freq_R = _usual_inv_freq(each.tensor.shape[-1]).to(each.tensor.device)
            each.tensor.copy_(_rotated(each.tensor, inv_freq_R))

    return store_edits.at_cached(subject, change)


def _usual_inv_freq(width: int) -> Tensor:
    return USUAL_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)


def _rotated(key_BGSD: Tensor, inv_freq_R: Tensor) -> Tensor:
    """Every key rotated by its slot, halves paired; what is beyond the rotary width stays."""
    return rotate(key_BGSD, *cos_sin(inv_freq_R, key_BGSD.shape[2], key_BGSD.dtype), "half")


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if not store_edits.edits_store(forward):
        return
    for inv_freq_R, parameter in _frequencies(forward.trusted):
        change = partial(_rotate_again, inv_freq_R)
        yield store_edits.stored_everywhere(parameter, change)
        yield store_edits.stored(words(parameter, "once"), partial(_once, change))


def _frequencies(trusted: Trusted) -> Iterator[tuple[Tensor, str]]:
    """inv_freq_R of the model's own rotary embedding, and with the usual base."""
    buffers = inv_freq_buffers(trusted.subject.model).values()
    own = [buffer_R for buffer_R in buffers if buffer_R.ndim == 1]
    if own:
        yield own[0], ""
    width = trusted.subject.facts.head_dim or 0
    if width % 2 == 0 < width:
        with trusted.subject.numerics():
            usual_R = _usual_inv_freq(width)
        yield usual_R.to(trusted.subject.device), "with the usual base"


def _rotate_again(inv_freq_R: Tensor, held: schedule.Held) -> None:
    key_BGSD = held.key_BGSD[:, :, held.first :]
    if 2 * inv_freq_R.shape[0] > key_BGSD.shape[-1]:
        raise Unsupported("the rotary table is wider than the keys")
    rotated_BGSD = _rotated(key_BGSD, inv_freq_R)
    held.key_BGSD = torch.cat([held.key_BGSD[:, :, : held.first], rotated_BGSD], 2)


def _once(change: Callable[[schedule.Held], None]) -> schedule.Edit:
    """Change the keys that are read, not those that are stored: no key is rotated a third time."""
    clean: dict[int, Tensor] = {}

    def edit(store: schedule.Store) -> None:
        for layer, held in store.items():
            before = clean.get(layer)
            known = before.shape[2] if before is not None else 0
            fresh = held.key_BGSD[:, :, known:]
            clean[layer] = fresh if before is None else torch.cat([before, fresh], 2)
            held.key_BGSD = clean[layer].clone()
            change(held)

    return edit


FAULT = Fault(
    name="key-rotated-twice", inject=inject, hypotheses={425: _hypotheses}, on_cache_only=True
)
