"""Reference attention, softmax(cap(scale q k) + bias) v, with every parameter explicit.

`attend` shares no code with any model or kernel. `fitted_scale` reads the scale and the heads off
the weights that a kernel computed.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import bias_of
from attncheck.numerics.budget import SHARES
from attncheck.numerics.divergence import max_abs, max_abs_finite
from attncheck.numerics.reorder import Reorder

SMALLEST_WEIGHT = 1e-9
"""Weights below this are left out of fits: their logarithms are mostly rounding."""


@final
@dataclass(frozen=True, kw_only=True)
class AttentionParams:
    """Everything that one layer's attention is made of.

    `allowed` broadcasts to (B, H, T, S); `bias` is added to the scores; `heads` gives the KV head
    of each query head. A query that may read no key gets `empty_row` as its output; None leaves it
    the mean of all values, which is what a softmax over equal finite minima gives.
    """

    scale: float
    allowed: Tensor
    heads: tuple[int, ...]
    cap: float | None = None
    sinks_H: Tensor | None = None
    bias: Tensor | None = None
    empty_row: float | None = 0.0


def params_of(call: AttentionCall, allowed: Tensor) -> AttentionParams:
    """The parameters that a call passes to its kernel, over these keys; like most kernels, it
    leaves empty rows the mean of all values.
    """
    options, heads = call.options, call.query_BHTD.shape[1]
    scale, sinks = options.get("scaling"), options.get("s_aux")
    return AttentionParams(
        scale=float(scale) if scale is not None else call.query_BHTD.shape[-1] ** -0.5,
        allowed=allowed,
        heads=grouped(heads, call.key_BGSD.shape[1]),
        cap=options.get("softcap"),
        sinks_H=sinks if isinstance(sinks, Tensor) else None,
        bias=bias_of(call),
        empty_row=None,
    )


def grouped(heads: int, kv_heads: int) -> tuple[int, ...]:
    """Contiguous groups: query head h reads KV head h // (H / G)."""
    return tuple(head * kv_heads // heads for head in range(heads))


def tiled(heads: int, kv_heads: int) -> tuple[int, ...]:
    """Heads dealt out in turn: query head h reads KV head h mod G."""
    return tuple(head % kv_heads for head in range(heads))


def attend(
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    params: AttentionParams,
    *,
    piecewise: bool = False,
    at_least: torch.dtype | None = None,
) -> Tensor:
    """context_BTHD in the dtype of the queries, computed in that dtype or in `at_least`.

    `piecewise` is the order of fused kernels: channel by channel onto the bias, and divided by the
    sum of the weights at the end; it always gives zeros to empty rows.
    """
    dtype = query_BHTD.dtype
    wide = dtype if at_least is None else torch.promote_types(dtype, at_least)
    heads = list(params.heads)
    query_BHTD = query_BHTD.to(wide)
    key_BHSD, value_BHSD = (each[:, heads].to(wide) for each in (key_BGSD, value_BGSD))
    scores_BHTS = _scores(query_BHTD, key_BHSD, params, piecewise)
    if piecewise:
        scores_BHTS = scores_BHTS.masked_fill(~params.allowed, float("-inf"))
        return _divided_last(scores_BHTS, value_BHSD, params.sinks_H).transpose(1, 2).to(dtype)
    zeros = params.empty_row == 0.0
    lowest = float("-inf") if zeros else torch.finfo(wide).min
    weights_BHTS = _softmax(scores_BHTS.masked_fill(~params.allowed, lowest), params.sinks_H)
    if zeros and params.sinks_H is None:
        weights_BHTS = weights_BHTS.nan_to_num(0.0)  # a softmax over -inf alone gives NaN
    context_BHTD = weights_BHTS @ value_BHSD
    if not zeros and params.empty_row is not None:
        empty_BHT1 = ~params.allowed.any(-1, keepdim=True)
        context_BHTD = context_BHTD.masked_fill(empty_BHT1, params.empty_row)
    return context_BHTD.to(dtype).transpose(1, 2)


def _divided_last(scores_BHTS: Tensor, value_BHSD: Tensor, sinks_H: Tensor | None) -> Tensor:
    highest_BHT1 = scores_BHTS.amax(-1, keepdim=True).clamp_min(torch.finfo(scores_BHTS.dtype).min)
    shares_BHTS = torch.exp(scores_BHTS - highest_BHT1)
    total_BHT1 = shares_BHTS.sum(-1, keepdim=True)
    if sinks_H is not None:
        total_BHT1 = total_BHT1 + torch.exp(
            sinks_H.to(scores_BHTS).view(1, -1, 1, 1) - highest_BHT1
        )
    return (shares_BHTS @ value_BHSD / total_BHT1).nan_to_num(0.0)


def _scores(
    query_BHTD: Tensor, key_BHSD: Tensor, params: AttentionParams, piecewise: bool
) -> Tensor:
    new, total = query_BHTD.shape[2], key_BHSD.shape[2]
    bias = None if params.bias is None else params.bias[..., :new, :total].to(query_BHTD)
    # fused kernels start from the bias and add channel by channel, which rounds differently
    if piecewise and bias is not None and not params.cap:
        scores_BHTS = bias.expand(*query_BHTD.shape[:3], total)
        for query_BHT, key_BHS in zip(query_BHTD.unbind(-1), key_BHSD.unbind(-1), strict=True):
            scores_BHTS = scores_BHTS + query_BHT[..., None] * key_BHS[..., None, :] * params.scale
        return scores_BHTS
    scores_BHTS = query_BHTD @ key_BHSD.transpose(-1, -2) * params.scale
    if params.cap:
        scores_BHTS = params.cap * torch.tanh(scores_BHTS / params.cap)
    return scores_BHTS if bias is None else scores_BHTS + bias


def _softmax(scores_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor:
    if sinks_H is None:
        return torch.softmax(scores_BHTS, dim=-1)
    sink_BHT1 = sinks_H.to(scores_BHTS).view(1, -1, 1, 1).expand(*scores_BHTS.shape[:3], 1)
    return torch.softmax(torch.cat([scores_BHTS, sink_BHT1], -1), dim=-1)[..., :-1]


def noise_floor(compute: Callable[[torch.dtype, bool], Tensor], dtype: torch.dtype) -> float:
    """How far rounding moves `compute(dtype, piecewise)` from its result in float64, in three
    orders of summation.
    """
    exact = compute(torch.float64, False)
    floors = [torch.finfo(dtype).eps * max_abs(exact)]
    for share, piecewise in ((SHARES[0], False), (SHARES[1], False), (SHARES[1], True)):
        # two orders of summation, so that one lucky order does not set the floor
        with Reorder(share):
            floors.append(max_abs_finite(compute(dtype, piecewise).double() - exact))
    return max(floors)


def fitted_scale(
    weights_BHTS: Tensor, query_BHTD: Tensor, key_BGSD: Tensor, params: AttentionParams
) -> tuple[float, tuple[int, ...]]:
    """(scale, KV head of each query head) that explain a kernel's weights best.

    Log weights of one query are its scores up to a constant. So each head's scale is a
    least-squares slope against its products with the keys of one KV head, and its KV head is the
    one that leaves the smallest residual.
    """
    chosen, slopes = [], []
    bias = (
        params.bias.expand(weights_BHTS.shape)
        if params.bias is not None
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
    # softmax divides every row by its own sum, a constant in the logarithm that centring removes
    seen_BTS = weights_BTS > SMALLEST_WEIGHT
    log_BTS = torch.where(seen_BTS, weights_BTS.clamp_min(SMALLEST_WEIGHT).log() - bias_BTS, 0.0)
    count_BT1 = seen_BTS.sum(-1, keepdim=True).clamp_min(1)

    def centred(values_BTS: Tensor) -> Tensor:
        kept = torch.where(seen_BTS, values_BTS, 0.0)
        return torch.where(seen_BTS, kept - kept.sum(-1, keepdim=True) / count_BT1, 0.0)

    x, y = centred(product_BTS), centred(log_BTS)
    slope = slope_between(x, y)
    return slope, float(((y - slope * x) ** 2).sum())


def slope_between(x: Tensor, y: Tensor) -> float:
    """The least-squares factor from x to y, 0 where x is all zeros."""
    energy = float((x * x).sum())
    return float((x * y).sum()) / energy if energy else 0.0
