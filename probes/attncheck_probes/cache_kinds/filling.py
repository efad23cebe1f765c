"""Filling caches, continuing on them, and the logits that must come out.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.probing import (
    ForwardSpec,
    Subject,
    Tokens,
    Unsupported,
    cache_kinds,
    reference_forward,
)


def filled(subject: Subject, rows: Tokens, cache: Any = None) -> Any:
    """A cache that holds these rows: of the model's own kind, or the one that is given."""
    if cache is None:
        return subject.passes.cache(ForwardSpec(rows, use_cache=True))
    return fed(subject, cache, rows, prefill=True)[1]


def forked(subject: Subject, rows: Tokens) -> Any:
    """A copy of a cache that holds these rows and is filled once; a cache of its own where the
    model's cannot be copied.
    """
    shared = subject.passes.once(("prefix", rows), lambda: filled(subject, rows))
    try:
        return cache_kinds.copied(shared)
    except Unsupported:
        return filled(subject, rows)


def continued(subject: Subject, cache: Any, rows: Tokens) -> Tensor:
    """The logits of `fed`, logits_BTV."""
    return fed(subject, cache, rows)[0]


def fed(subject: Subject, cache: Any, rows: Tokens, prefill: bool = False) -> tuple[Tensor, Any]:
    """Feed rows on a cache: (logits_BTV, the cache); token by token where a chunk of several tokens
    behind others does not agree with one forward.
    """
    size = len(rows[0]) if prefill or subject.can.chunks_agree else 1
    parts = []
    with torch.no_grad():
        for start in range(0, len(rows[0]), size):
            chunk = tuple(row[start : start + size] for row in rows)
            output = subject.passes.call(chunk, cache=cache, use_cache=True)
            cache = output.cache
            parts.append(output.logits_BTV)
    return torch.cat(parts, 1), cache


def wanted(subject: Subject, rows: Tokens, prefill: int) -> Tensor:
    """The logits behind the prefill of rows that run alone, (B, T, V)."""
    alone = [subject.logits(reference_forward(subject, row, prefill)) for row in rows]
    return torch.cat(alone)[:, prefill:]
