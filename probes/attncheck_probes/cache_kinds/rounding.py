"""A cache that rounds, held to its own rounding.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attncheck.probing import (
    HEADROOM,
    AtMost,
    ForwardSpec,
    Measurement,
    Subject,
    Verdict,
    cache_kinds,
    decode_chunks,
    holes,
    max_abs_diff,
)
from attncheck_probes.cache_kinds import filling


def decode_on(subject: Subject, kind: str) -> ForwardSpec:
    """The main row in chunks of many, one and several tokens on a cache of a kind."""
    length = subject.inputs.length
    chunks = decode_chunks(subject, length, length // 2)
    return ForwardSpec(subject.inputs.tokens, chunks=chunks, cache_kind=kind)


def approximate(subject: Subject, name: str, kind: str) -> Measurement:
    """A cache that rounds may be no further from one forward than its rounding explains.

    The explanation is measured: a dynamic cache is filled, its contents go once through the same
    storage, and it is continued; at several places, since a decode rounds later tokens as well.
    """
    subject.can.library_cache.require()
    row, half = subject.inputs.row, subject.inputs.length // 2
    want_BTV = filling.wanted(subject, (row,), half)
    got_BTV = subject.logits(decode_on(subject, kind))[:, half:]
    store = cache_kinds.new_cache(kind, subject.model, rows=1, length=len(row), dtype=subject.dtype)
    trips = {half, (half + len(row)) // 2, len(row) - 1}
    difference = max_abs_diff(got_BTV, want_BTV)
    explained = max(_trip(subject, kind, want_BTV, cut) for cut in sorted(trips))
    return AtMost(
        name,
        difference,
        "largest logit difference",
        limit=HEADROOM * max(explained, subject.budget.value),
        broken=Verdict.WARN,
        positions=got_BTV.shape[1],
        nonfinite=holes(got_BTV),
        note=f"one trip through {type(store).__name__} moves the logits by {explained:.2g}",
    )


def _trip(subject: Subject, kind: str, want_BTV: Tensor, cut: int) -> float:
    """How far the logits behind `cut` move when everything before it was stored once; the last of
    `want_BTV` are those of the end of the row.
    """
    row = subject.inputs.row
    store = cache_kinds.new_cache(kind, subject.model, rows=1, length=len(row), dtype=subject.dtype)
    cache = filling.forked(subject, (row[:cut],))
    with torch.no_grad(), subject.numerics():
        cache_kinds.send_through(cache, store, len(row) // 2)
    rounded_BTV = filling.continued(subject, cache, (row[cut:],))
    return max_abs_diff(rounded_BTV, want_BTV[:, -rounded_BTV.shape[1] :])
