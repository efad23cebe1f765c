"""Attention as the config promises it, written out: the kernel of the path that predictions run on.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import bias_in


@final
@dataclass(frozen=True, kw_only=True)
class Scores:
    """How scores become weights: the scale, the soft-cap, the sinks (one a head), a bias to add,
    what an empty row gives.
    """

    scale: float
    softcap: float | None = None
    sinks_H: Tensor | None = None
    bias: Tensor | None = None
    empty_row: float | None = None


def scores_of(call: AttentionCall) -> Scores:
    """The scores that a kernel call asks for."""
    options = call.options
    scale = options.get("scaling")
    sinks = options.get("s_aux")
    return Scores(
        scale=float(scale) if scale is not None else call.query_BHTD.shape[-1] ** -0.5,
        softcap=options.get("softcap"),
        sinks_H=sinks if isinstance(sinks, Tensor) else None,
        bias=bias_in(call.mask),
    )


def grouped(keys_BGSD: Tensor, heads: int, tiled: bool = False) -> Tensor:
    """Key/value heads spread over the query heads: in blocks, or (the fault) dealt out in turn."""
    times = heads // keys_BGSD.shape[1]
    return keys_BGSD.repeat(1, times, 1, 1) if tiled else keys_BGSD.repeat_interleave(times, 1)


def attend(
    query_BHTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, allowed: Tensor, scores: Scores
) -> Tensor:
    """(B, T, H, D) in at least float32, returned in the dtype of the queries."""
    wide = torch.float64 if query_BHTD.dtype == torch.float64 else torch.float32
    raw = query_BHTD.to(wide) @ key_BHSD.to(wide).mT * scores.scale
    if scores.softcap is not None:
        raw = torch.tanh(raw / scores.softcap) * scores.softcap
    if scores.bias is not None:
        raw = raw + scores.bias[..., : raw.shape[-2], : raw.shape[-1]].to(wide)
    raw = raw.masked_fill(~allowed, torch.finfo(torch.float32).min)
    out_BHTD = _softmax(raw, scores.sinks_H) @ value_BHSD.to(wide)
    if scores.empty_row is not None:
        out_BHTD = out_BHTD.masked_fill(~allowed.any(-1, keepdim=True), scores.empty_row)
    return out_BHTD.to(query_BHTD.dtype).transpose(1, 2).contiguous()


def _softmax(raw_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor:
    if sinks_H is None:
        return raw_BHTS.softmax(-1)
    sinks = sinks_H.to(raw_BHTS.dtype).reshape(1, -1, 1, 1).expand(*raw_BHTS.shape[:-1], 1)
    return torch.cat([raw_BHTS, sinks], -1).softmax(-1)[..., :-1]


def is_own_attention(call: AttentionCall) -> bool:
    """Whether a decoder layer attends to its own tokens here: not to an encoder, and not in both
    directions.
    """
    causal = call.options.get("is_causal", getattr(call.module, "is_causal", True))
    return (call.inline or causal is not False) and bool(
        call.query_BHTD.shape[2] == call.key_BGSD.shape[2]
    )
