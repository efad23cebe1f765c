"""Feeding a filled cache by hand, in pieces that the model takes rightly, and what that is to be
compared with.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.core.finding import AtMost, Measurement, Verdict
from attncheck.model.cache_kinds import new_cache, send_through
from attncheck.model.forward_spec import ForwardSpec, Positions
from attncheck.model.inputs import Row, Tokens
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import holes, max_abs_diff


def pieces(subject: Subject, length: int, prefill: int) -> tuple[int, ...]:
    """A prefill, a step, and the rest at once; in single steps where several tokens at once do not
    agree with one forward.
    """
    rest = length - prefill - 1
    return (prefill, 1, *((1,) * rest if not subject.can.chunks_agree else (rest,)))


def yardstick(
    subject: Subject, row: Row, prefill: int, positions: Positions | None = None
) -> ForwardSpec:
    """One row alone: one forward, or its decode in single steps where that differs already, which
    is for `decode-paths`.
    """
    steps = (prefill, *(1,) * (len(row) - prefill))
    return ForwardSpec((row,), chunks=() if subject.can.steps_agree else steps, positions=positions)


def filled(subject: Subject, rows: Tokens) -> Any:
    """A cache of the model's own kind that holds these rows.

    Raises:
        Unsupported: the model returns no cache.
    """
    return subject.passes.cache(ForwardSpec(rows, use_cache=True))


def continued(subject: Subject, cache: Any, rows: Tokens) -> Tensor:
    """Feed rows on a cache, logits_BTV; token by token where several at once do not agree with one
    forward.
    """
    size = len(rows[0]) if subject.can.chunks_agree else 1
    parts = []
    with torch.no_grad():
        for start in range(0, len(rows[0]), size):
            reply = subject.passes.call(
                tuple(row[start : start + size] for row in rows), cache=cache, use_cache=True
            )
            cache = reply.cache
            parts.append(reply.logits_BTV)
    return torch.cat(parts, 1)


def unstored(subject: Subject, name: str) -> Measurement:
    """One case: tokens on a filled cache with `use_cache=False`. Nothing need be kept of them; what
    is kept must be read.

    Raises:
        Unsupported: the model returns no cache.
    """
    row, half = subject.inputs.row, subject.inputs.length // 2
    stop = len(row) if subject.can.chunks_agree else half + 1
    cache = filled(subject, (row[:half],))
    with torch.no_grad():
        got_BTV = subject.passes.call((row[half:stop],), cache=cache, use_cache=False).logits_BTV
    want_BTV = subject.logits(yardstick(subject, row, half))[:, half:stop]
    return subject.compare(
        name, got_BTV, want_BTV, offset=half, note=f"{half} tokens on the cache, {stop - half} fed"
    )


def approximate(subject: Subject, name: str, kind: str) -> Measurement:
    """One case: a cache that rounds, no further from one forward than its rounding explains.

    The explanation is measured: a dynamic cache is filled, its contents go once through the same
    storage, and it is continued.
    """
    row, half = subject.inputs.row, subject.inputs.length // 2
    full_BTV = subject.logits(yardstick(subject, row, half))[:, half:]
    got_BTV = subject.logits(
        ForwardSpec((row,), chunks=pieces(subject, len(row), half), cache_kind=kind)
    )[:, half:]
    store = new_cache(kind, subject.model, rows=1, length=len(row), dtype=subject.dtype)
    cache = filled(subject, (row[:half],))
    with torch.no_grad(), subject.numerics():
        send_through(cache, store)
    rounded_BTV = continued(subject, cache, (row[half:],))
    apart, explained = (max_abs_diff(each, full_BTV) for each in (got_BTV, rounded_BTV))
    return AtMost(
        name,
        apart,
        "largest logit difference",
        limit=HEADROOM * max(explained, subject.budget.value),
        broken=Verdict.WARN,
        positions=got_BTV.shape[1],
        nonfinite=holes(got_BTV),
        note=f"one trip through {type(store).__name__} moves the logits by {explained:.2g}",
    )
