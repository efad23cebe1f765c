"""Which keys each query should read: causal, within its layer's span, its document, and no padding.

Axes: B batch, T query positions, S key positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

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
    if isinstance(spec.mask, Mask2D):
        allowed = (
            allowed
            & torch.tensor(spec.mask.rows, dtype=torch.bool, device=device)[:, None, None, :]
        )
    return allowed


def first_held(view: View) -> int:
    """The oldest key that the cache still holds when the chunk of this view is fed."""
    return max(0, view.start - view.span.size + 1) if view.span.kind == "sliding" else 0


def held(spec: ForwardSpec, span: AttentionSpan, like: Tensor) -> Tensor:
    """(1, 1, T, S) booleans: the keys that a cache of this span holds at each chunk, or gets."""
    kept = torch.zeros_like(like[:1, :1])
    for each in chunk_views(View(spec=spec, layer=0, start=0, stop=spec.length, span=span)):
        kept[:, :, each.start : each.stop, first_held(each) :] = True
    return kept


def chunk_views(view: View) -> list[View]:
    """The chunks of a forward, each as a view of its own."""
    views, start = [], 0
    for size in view.spec.chunks or (view.spec.length,):
        views.append(replace(view, start=start, stop=start + size))
        start += size
    return views


def edited(allowed: Tensor, change: Allowed | None, view: View) -> Tensor:
    """The readable keys with the fault in each chunk; no chunk can read what comes after it."""
    if change is None:
        return allowed
    out = torch.zeros_like(allowed)
    for each in chunk_views(view):
        rows = allowed[:, :, each.start : each.stop, : each.stop]
        out[:, :, each.start : each.stop, : each.stop] = change(rows, each)
    return out
