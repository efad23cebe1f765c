"""Which keys each query should read: causal, within its layer's span, its document, and no padding.

Axes: B batch, T query positions, S key positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS
from attncheck.core.errors import Unsupported
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """The part of a layer that is computed: queries start..stop of `spec` over keys 0..stop.

    `span` is the span of this layer.
    """

    spec: ForwardSpec
    layer: int
    start: int
    stop: int
    span: AttentionSpan = FULL


Allowed = Callable[[Tensor, View], Tensor]


def segments_of(spec: ForwardSpec) -> tuple[tuple[int, ...], ...] | None:
    """The document of each token, from a 4D mask or from positions that restart without one."""
    if isinstance(spec.mask, Mask4D):
        return spec.mask.segments
    if spec.positions is None or spec.cached or spec.mask is not None:
        return None
    return tuple(_numbered(row) for row in spec.positions)


def _numbered(row: tuple[int, ...]) -> tuple[int, ...]:
    numbers, number = [0], 0
    for before, now in itertools.pairwise(row):
        number += now <= before
        numbers.append(number)
    return tuple(numbers)


def expected_keys(spec: ForwardSpec, span: AttentionSpan, device: torch.device) -> Tensor:
    """(B, 1, T, T) booleans: causal, within the layer's span, inside the document, no padding."""
    length = spec.length
    allowed = span.allowed_TS(length, length, device).expand(len(spec.tokens), 1, length, length)
    segments = segments_of(spec)
    if segments is not None:
        number_BT = torch.tensor(segments, device=device)
        allowed = allowed & (number_BT[:, None, :, None] == number_BT[:, None, None, :])
    return allowed & real_keys(spec, device)


def real_keys(spec: ForwardSpec, device: torch.device) -> Tensor:
    """(B or 1, 1, 1, T or 1) booleans: the tokens that are no padding."""
    if not isinstance(spec.mask, Mask2D):
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    return torch.tensor(spec.mask.rows, dtype=torch.bool, device=device)[:, None, None]


def first_held(span: AttentionSpan, length: int) -> int:
    """The oldest of `length` keys that a cache of this span still holds."""
    return max(0, length - span.size + 1) if span.kind == "sliding" else 0


def held(spec: ForwardSpec, span: AttentionSpan, like: Tensor) -> Tensor:
    """(1, 1, T, S) booleans: the keys that a cache of this span holds at each chunk, or gets."""
    kept = torch.zeros_like(like[:1, :1])
    for start, stop in chunk_bounds(spec):
        kept[:, :, start:stop, first_held(span, start) :] = True
    return kept


def chunk_bounds(spec: ForwardSpec) -> list[tuple[int, int]]:
    """Where each chunk of a forward begins and ends."""
    return list(itertools.pairwise((0, *itertools.accumulate(spec.chunks or (spec.length,)))))


def edited(allowed: Tensor, change: Allowed | None, view: View) -> Tensor:
    """The readable keys with the fault in each chunk; no chunk can read what comes after it."""
    if change is None:
        return allowed
    out = torch.zeros_like(allowed)
    for start, stop in chunk_bounds(view.spec):
        rows = allowed[:, :, start:stop, :stop]
        out[:, :, start:stop, :stop] = change(rows, replace(view, start=start, stop=stop))
    return out


def nearest_span(
    spans: Collection[AttentionSpan], call: AttentionCall, spec: ForwardSpec
) -> AttentionSpan:
    """Of the spans that a config allows, the one that this call over the whole forward has; FULL
    where that cannot be read.
    """
    try:
        own_BHTS = allowed_BHTS(call)
    except Unsupported:
        return FULL
    if own_BHTS.shape[-2:] != (spec.length, spec.length):
        return FULL
    differing = {
        span: int((own_BHTS ^ expected_keys(spec, span, own_BHTS.device)).sum()) for span in spans
    }
    return min(differing, key=lambda span: differing[span])
