"""Attention as it is defined, in the precision of its inputs, with every ingredient written out:
the judge.

`attend` shares no code with any model or kernel. The fits read the scale and the heads off weights
that a kernel computed.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width, R
rotary width.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.numerics.budget import HEADROOM, SHARES
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.reorder import Reorder

Turn = Literal["half", "pairs"]
SMALLEST_WEIGHT = 1e-9
"""Weights below this are left out of fits: their logarithms are mostly rounding."""


@final
@dataclass(frozen=True, kw_only=True)
class Terms:
    """Everything that one layer's attention is made of.

    `allowed` is broadcastable to (B, H, T, S); `bias` is added to the scores; `heads` gives the KV
    head of each query head.
    """

    scale: float
    allowed: Tensor
    heads: tuple[int, ...]
    cap: float | None = None
    sinks_H: Tensor | None = None
    bias: Tensor | None = None

    def but(self, **changed: object) -> Terms:
        """The same with some ingredients exchanged."""
        return replace(self, **changed)  # type: ignore[arg-type]


def grouped(heads: int, kv_heads: int) -> tuple[int, ...]:
    """Contiguous groups: query head h reads KV head h // (H / G)."""
    return tuple(head * kv_heads // heads for head in range(heads))


def tiled(heads: int, kv_heads: int) -> tuple[int, ...]:
    """Heads dealt out in turn: query head h reads KV head h mod G."""
    return tuple(head % kv_heads for head in range(heads))


def attend(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, terms: Terms, piecewise: bool = False
) -> Tensor:
    """context_BTHD: softmax(cap(scale q k) + bias, with the sinks' share taken off) v, over the
    allowed keys.

    A query that may read nothing gets zeros. `piecewise` is the order of fused kernels: channel by
    channel onto the bias, and divided by the sum of the weights at the end.
    """
    heads = list(terms.heads)
    scores_BHTS = _scores(query_BHTD, key_BGSD[:, heads], terms, piecewise)
    scores_BHTS = scores_BHTS.masked_fill(~terms.allowed, float("-inf"))
    if piecewise:
        return _divided_last(scores_BHTS, value_BGSD[:, heads], terms.sinks_H).transpose(1, 2)
    weights_BHTS = _softmax(scores_BHTS, terms.sinks_H)
    return (weights_BHTS @ value_BGSD[:, heads]).transpose(1, 2)


def _divided_last(scores_BHTS: Tensor, value_BHSD: Tensor, sinks_H: Tensor | None) -> Tensor:
    highest_BHT1 = scores_BHTS.amax(-1, keepdim=True).clamp_min(torch.finfo(scores_BHTS.dtype).min)
    shares_BHTS = torch.exp(scores_BHTS - highest_BHT1)
    total_BHT1 = shares_BHTS.sum(-1, keepdim=True)
    if sinks_H is not None:
        total_BHT1 = total_BHT1 + torch.exp(
            sinks_H.to(scores_BHTS).view(1, -1, 1, 1) - highest_BHT1
        )
    return (shares_BHTS @ value_BHSD / total_BHT1).nan_to_num(0.0)


def _scores(query_BHTD: Tensor, key_BHSD: Tensor, terms: Terms, piecewise: bool) -> Tensor:
    if piecewise and terms.bias is not None and not terms.cap:
        scores_BHTS = terms.bias.to(query_BHTD).expand(*query_BHTD.shape[:3], key_BHSD.shape[2])
        for query_BHT, key_BHS in zip(query_BHTD.unbind(-1), key_BHSD.unbind(-1), strict=True):
            scores_BHTS = scores_BHTS + query_BHT[..., None] * key_BHS[..., None, :] * terms.scale
        return scores_BHTS
    scores_BHTS = query_BHTD @ key_BHSD.transpose(-1, -2) * terms.scale
    if terms.cap:
        scores_BHTS = terms.cap * torch.tanh(scores_BHTS / terms.cap)
    return scores_BHTS if terms.bias is None else scores_BHTS + terms.bias.to(scores_BHTS)


def _softmax(scores_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor:
    if sinks_H is None:
        return torch.softmax(scores_BHTS, dim=-1).nan_to_num(0.0)
    sink_BHT1 = sinks_H.to(scores_BHTS).view(1, -1, 1, 1).expand(*scores_BHTS.shape[:3], 1)
    return torch.softmax(torch.cat([scores_BHTS, sink_BHT1], -1), dim=-1)[..., :-1]


def turned(states_BHTD: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> Tensor:
    """States turned by rotary tables of width R <= D, halves against halves or in neighbouring
    pairs; the rest stays.

    Raises:
        ValueError: the tables do not fit the states.
    """
    width = cos.shape[-1]
    if width > states_BHTD.shape[-1] or cos.shape[-2] != states_BHTD.shape[-2]:
        raise ValueError("the rotary tables have another length or width than the states")
    cos_BHTR, sin_BHTR = (
        table.reshape(-1, 1, *table.shape[-2:]) if table.ndim < 4 else table for table in (cos, sin)
    )
    part, rest = states_BHTD[..., :width], states_BHTD[..., width:]
    if turn == "half":
        first, second = part.chunk(2, -1)
        quarter = torch.cat([-second, first], -1)
    else:
        quarter = torch.stack([-part[..., 1::2], part[..., ::2]], -1).flatten(-2)
        cos_BHTR, sin_BHTR = (
            t[..., : width // 2].repeat_interleave(2, -1) for t in (cos_BHTR, sin_BHTR)
        )
    return torch.cat([part * cos_BHTR + quarter * sin_BHTR, rest], -1)


def floor_of(compute: Callable[[torch.dtype, bool], Tensor], dtype: torch.dtype) -> float:
    """How far rounding carries `compute` in the model's dtype from its outcome in float64, in three
    orders.

    `compute` is told the dtype, and whether to go about it as fused kernels do.
    """
    exact = compute(torch.float64, False)
    floors = [torch.finfo(dtype).eps * max_abs(exact)]
    for share, piecewise in ((SHARES[0], False), (SHARES[1], False), (SHARES[1], True)):
        with Reorder(share):
            delta = (compute(dtype, piecewise).double() - exact).abs()
        floors.append(
            float(delta[torch.isfinite(delta)].max()) if bool(torch.isfinite(delta).any()) else 0.0
        )
    return max(floors)


def budget_from(floor: float) -> float:
    """The largest difference that rounding explains, from the floor of one layer."""
    return HEADROOM * floor


def fitted_scale(
    weights_BHTS: Tensor, query_BHTD: Tensor, key_BGSD: Tensor, terms: Terms
) -> tuple[float, tuple[int, ...]]:
    """(scale, KV head of each query head) that explain a kernel's weights best.

    Log weights of one query are its scores up to a constant, so each head's scale is a
    least-squares slope against the raw products with the keys of one KV head, and the KV head is
    the one with the smallest residual.
    """
    chosen, slopes = [], []
    bias = (
        terms.bias.expand(weights_BHTS.shape)
        if terms.bias is not None
        else torch.zeros_like(weights_BHTS)
    )
    for head in range(weights_BHTS.shape[1]):
        fits = [
            _slope(weights_BHTS[:, head], query_BHTD[:, head], key_BGSD[:, kv], bias[:, head])
            for kv in range(key_BGSD.shape[1])
        ]
        best = min(range(len(fits)), key=lambda kv: fits[kv][1])
        chosen.append(best)
        slopes.append(fits[best][0])
    return statistics.median(slopes), tuple(chosen)


def _slope(
    weights_BTS: Tensor, query_BTD: Tensor, key_BSD: Tensor, bias_BTS: Tensor
) -> tuple[float, float]:
    product_BTS = query_BTD @ key_BSD.transpose(-1, -2)
    seen_BTS = weights_BTS > SMALLEST_WEIGHT
    log_BTS = torch.where(seen_BTS, weights_BTS.clamp_min(SMALLEST_WEIGHT).log() - bias_BTS, 0.0)
    count_BT1 = seen_BTS.sum(-1, keepdim=True).clamp_min(1)

    def centred(values_BTS: Tensor) -> Tensor:
        kept = torch.where(seen_BTS, values_BTS, 0.0)
        return torch.where(seen_BTS, kept - kept.sum(-1, keepdim=True) / count_BT1, 0.0)

    x, y = centred(product_BTS), centred(log_BTS)
    energy = float((x * x).sum())
    slope = float((x * y).sum()) / energy if energy else 0.0
    return slope, float(((y - slope * x) ** 2).sum())
