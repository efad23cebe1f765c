"""What it is
    The cache stores keys and values in a lower precision than the model computes in.

How it looks
    A divergence between cached and uncached logits that does not shrink in a higher precision, of
    the size of the storage format's rounding.

Where it comes from
    A cache allocated in a default dtype; a dtype cast after the cache was made; a quantised cache
    left on.

What to change
    Allocate the cache in the dtype of the keys, or state the loss of precision as the intended
    trade-off.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    WrongForward,
    schedule,
    store_edits,
)
from attncheck.faults.engine.rounding import HALF_BITS, with_bits
from attncheck.model.caches import CachedTensor
from attncheck.model.subject import Subject

LOWER = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32)
FLOAT8_BITS = 4


def inject(subject: Subject) -> Injected:
    """Round all cached keys and values to fewer bits before each call on the cache."""
    # A bfloat16 model would not notice a cache in bfloat16.
    bits = HALF_BITS if subject.dtype.itemsize > torch.bfloat16.itemsize else FLOAT8_BITS

    def change(each: CachedTensor, filled: int) -> None:
        each.tensor.copy_(with_bits(each.tensor, bits))

    return store_edits.at_cached(subject, change)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if not store_edits.edits_store(forward):
        return
    for dtype in LOWER:
        if dtype.itemsize < forward.subject.dtype.itemsize:
            name = str(dtype).removeprefix("torch.")
            yield store_edits.stored_everywhere(name, partial(_rounded, dtype))
            parameter = f"{name}, before they are first read"
            yield Hypothesis(parameter, change=Change(stored_as=dtype))


def _rounded(dtype: torch.dtype, held: schedule.Held) -> None:
    held.key_BGSD = held.key_BGSD.to(dtype).to(held.key_BGSD.dtype)
    held.value_BGSD = held.value_BGSD.to(dtype).to(held.value_BGSD.dtype)


FAULT = Fault(
    name="cache-low-precision", inject=inject, hypotheses={430: _hypotheses}, on_cache_only=True
)
