"""Decode schedules that a model takes correctly, the forward that a decode must reproduce, and a
cache to roll back.
"""

from __future__ import annotations

from typing import Any

import transformers

from attncheck.model.cache_kinds import may_crop, new_cache, self_attention
from attncheck.model.forward_spec import ForwardSpec, Positions
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject


def decode_chunks(subject: Subject, length: int, prefill: int) -> tuple[int, ...]:
    """A prefill, a step, and the rest in one chunk; in single steps where a chunk of several tokens
    does not agree with one forward.
    """
    rest = length - prefill - 1
    return (prefill, 1, *((1,) * rest if not subject.can.chunks_agree else (rest,)))


def reference_forward(
    subject: Subject, row: Row, prefill: int, positions: Positions | None = None
) -> ForwardSpec:
    """One row alone: one forward, or its decode in single steps where the two differ, which
    `decode-paths` reports.
    """
    steps = (prefill, *(1,) * (len(row) - prefill))
    return ForwardSpec((row,), chunks=() if subject.can.steps_agree else steps, positions=positions)


def rollback_cache(subject: Subject, kind: str = "") -> Any:
    """An empty cache that keeps what a later crop needs: of a kind of `cache_kinds`, otherwise the
    library's dynamic one; None where the model makes a cache of its own, which is taken as it is.

    Raises:
        Unsupported: the model returns no cache, or takes none of this kind.
    """
    row, length = subject.inputs.row, 2 * subject.inputs.length
    if not kind:
        own = self_attention(subject.passes.cache(ForwardSpec((row[:2],), use_cache=True)))
        if type(own) is not transformers.DynamicCache:
            return None
    model, dtype = subject.model, subject.dtype
    cache = new_cache(kind or "dynamic", model, rows=1, length=length, dtype=dtype)
    may_crop(cache)
    return cache
