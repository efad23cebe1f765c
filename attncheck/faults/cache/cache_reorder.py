"""What it is
    Selecting or reordering rows of the cache moves the wrong ones.

How it looks
    Beam search gives scores that a forward over the same tokens does not give; greedy decoding is
    right.

Where it comes from
    `index_select` along the wrong axis or for the keys only; recurrent states left behind.

What to change
    Reorder keys, values and states of every layer along the batch axis with one index.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Injected,
    Trusted,
    WrongForward,
    expected,
    schedule,
    store_edits,
)
from attncheck.model.caches import tensors_of
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let each row of a batch continue on the cache of the row before it."""
    subject.can.steps_agree.require(CannotInject)
    row, length = subject.inputs.row, subject.inputs.length
    cache = subject.passes.cache(
        ForwardSpec((row, subject.inputs.other(row)), chunks=(length - 1, 1))
    )
    if next(tensors_of(cache), None) is None:
        raise CannotInject("the cache holds no tensors")

    def change(cache: Any) -> None:
        for each in tensors_of(cache):
            if each.tensor.ndim > 1 and each.tensor.shape[0] > 1:
                each.tensor.copy_(each.tensor.roll(1, 0))

    return store_edits.at_cache(subject, change)


def _keys_and_values(forward: WrongForward) -> Iterator[Hypothesis]:
    if len(forward.spec.tokens) > 1 and store_edits.edits_store(forward):
        yield store_edits.stored_everywhere("", _roll_rows)


def _roll_rows(held: schedule.Held) -> None:
    held.key_BGSD, held.value_BGSD = held.key_BGSD.roll(1, 0), held.value_BGSD.roll(1, 0)


def _states_too(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked and len(forward.spec.tokens) > 1 and forward.trusted.keeps_states:
        yield Hypothesis("states too", predict=_on_cache_of_row_before)


def _on_cache_of_row_before(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Every row alone on a cache of its own, each chunk on the cache of the row before it."""
    caches: list[object] = [None] * len(spec.tokens)
    parts: list[list[Tensor]] = [[] for _ in spec.tokens]
    for start, stop in expected.chunk_bounds(spec):
        caches = [caches[number - 1] for number in range(len(caches))]
        for number, tokens in enumerate(spec.tokens):
            logits_BTV, caches[number] = schedule.model_step(
                trusted, ForwardSpec((tokens,)), start, stop, caches[number]
            )
            parts[number].append(logits_BTV)
    return torch.cat([torch.cat(row, 1) for row in parts])


FAULT = Fault(
    name="cache-reorder",
    inject=inject,
    hypotheses={420: _keys_and_values, 450: _states_too},
    on_cache_only=True,
)
