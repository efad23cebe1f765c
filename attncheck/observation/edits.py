"""What may be done to a vector where it stands: zeroed or scaled, as a whole or in some channels,
reordered, rounded.

Axes: N vectors, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attncheck.core.observed_part import How
from attncheck.faults.engine.rounding import with_bits

DTYPES = (torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32)
BITS = (8, 11)
"""Bits of a significand that numbers are rounded to with their exponents kept, as by a cast of
scaled numbers."""
AGREE = 0.99
"""This share of the elements must be the rounded ones: two roundings may differ at a tie."""

SHOWN = 2
"""Of factors for the channels so many vectors are no evidence."""
MANY = 1024
"""More vectors are not compared with one another."""


class VectorEdit(NamedTuple):
    """One edit of the right vectors: where it fits, what it predicts, its amount and dtype, and
    whether it leaves the other channels as they are.
    """

    how: How
    fits_N: Tensor
    predicted_ND: Tensor
    amount_N: Tensor | None = None
    dtype: str = ""
    in_channels: bool = False


def edits(observed_ND: Tensor, right_ND: Tensor, limit: float) -> Iterator[VectorEdit]:
    """Each edit of the right vectors."""
    zero_ND = torch.zeros_like(right_ND)
    yield VectorEdit("zero", (observed_ND.abs() <= limit).all(-1), zero_ND)
    same_N = ((observed_ND - right_ND).abs() <= limit).all(-1)
    yield VectorEdit("other token", same_N, right_ND)
    energy_N = right_ND.square().sum(-1).clamp_min(torch.finfo(right_ND.dtype).tiny)
    factor_N = (observed_ND * right_ND).sum(-1) / energy_N
    scaled_ND = right_ND * factor_N[:, None]
    slack_N1 = limit * factor_N.abs().clamp_min(1.0)[:, None]
    fits_N = ((observed_ND - scaled_ND).abs() <= slack_N1).all(-1)
    yield VectorEdit("scaled", fits_N, scaled_ND, factor_N)
    yield from _in_channels(observed_ND, right_ND, limit)
    reordered_ND = reordered(observed_ND, right_ND)
    yield VectorEdit(
        "reordered", ((observed_ND - reordered_ND).abs() <= limit).all(-1), reordered_ND
    )
    weighted_ND = weighted(observed_ND, right_ND)
    slack_N1 = limit * weighted_ND.abs().amax(-1, keepdim=True).clamp_min(1.0)
    fits_N = ((observed_ND - weighted_ND).abs() <= slack_N1).all(-1)
    # the first vector fits its own factors
    yield VectorEdit("weighted", fits_N & (fits_N.sum() > SHOWN), weighted_ND)
    yield from _moved(observed_ND, right_ND, limit)
    for dtype in DTYPES:
        if torch.finfo(dtype).eps <= 2 * torch.finfo(right_ND.dtype).eps:
            continue
        rounded_ND = right_ND.to(dtype).to(right_ND.dtype)
        fits_N = _rounded_alike(observed_ND, rounded_ND, torch.finfo(dtype).eps, limit)
        yield VectorEdit("rounded", fits_N, observed_ND, dtype=str(dtype).removeprefix("torch."))
    for bits in BITS:
        fits_N = _rounded_alike(observed_ND, with_bits(right_ND, bits), 2.0 ** (1 - bits), limit)
        yield VectorEdit("rounded", fits_N, observed_ND, dtype=f"{bits} bits")


def _moved(observed_ND: Tensor, right_ND: Tensor, limit: float) -> Iterator[VectorEdit]:
    """One vector added to several, as by a bias: each head has its own."""
    if not SHOWN < len(right_ND) <= MANY:
        return
    added_ND = (observed_ND - right_ND).contiguous()
    alike_NN = torch.cdist(added_ND, added_ND, p=float("inf")) <= 2 * limit
    moved_ND = right_ND + added_ND[alike_NN.double().argmax(-1)]
    yield VectorEdit("moved", alike_NN.sum(-1) > SHOWN, moved_ND)


def _in_channels(observed_ND: Tensor, right_ND: Tensor, limit: float) -> Iterator[VectorEdit]:
    """The channels in which a vector differs zeroed, or all times one factor."""
    differs_ND = (observed_ND - right_ND).abs() > limit
    count_N = differs_ND.sum(-1)
    some_N = (count_N > SHOWN) & (count_N < right_ND.shape[-1])
    zeroed_ND = right_ND.masked_fill(differs_ND, 0.0)
    fits_N = some_N & ((observed_ND - zeroed_ND).abs() <= limit).all(-1)
    yield VectorEdit("zero", fits_N, zeroed_ND, in_channels=True)
    changed_ND = right_ND * differs_ND
    energy_N = changed_ND.square().sum(-1).clamp_min(torch.finfo(right_ND.dtype).tiny)
    factor_N = (observed_ND * changed_ND).sum(-1) / energy_N
    scaled_ND = torch.where(differs_ND, right_ND * factor_N[:, None], right_ND)
    slack_N1 = limit * factor_N.abs().clamp_min(1.0)[:, None]
    fits_N = some_N & ((observed_ND - scaled_ND).abs() <= slack_N1).all(-1)
    yield VectorEdit("scaled", fits_N, scaled_ND, factor_N, in_channels=True)


def _rounded_alike(observed_ND: Tensor, rounded_ND: Tensor, eps: float, limit: float) -> Tensor:
    """Whether vectors are the rounded ones (N,), but for few elements that are off by one unit."""
    close_ND = (observed_ND - rounded_ND).abs()
    unit_ND = eps * rounded_ND.abs() + limit
    return ((close_ND <= limit).double().mean(-1) >= AGREE) & (close_ND <= unit_ND).all(-1)


def reordered(observed_ND: Tensor, right_ND: Tensor) -> Tensor:
    """The right vectors with their entries in the one order that gives the first observed one."""
    if not len(right_ND):
        return right_ND
    order_D = torch.empty_like(right_ND[0], dtype=torch.int64)
    order_D[observed_ND[0].argsort()] = right_ND[0].argsort()
    return right_ND[:, order_D]


def weighted(observed_ND: Tensor, right_ND: Tensor) -> Tensor:
    """The right vectors times the one factor for each channel that gives the first observed one,
    and times a factor of their own: what the weight of a norm does.
    """
    if not len(right_ND):
        return right_ND
    factor_D = (observed_ND[0] / right_ND[0]).nan_to_num(0.0, 0.0, 0.0)
    weighted_ND = right_ND * factor_D
    energy_N = weighted_ND.square().sum(-1).clamp_min(torch.finfo(right_ND.dtype).tiny)
    return weighted_ND * ((observed_ND * weighted_ND).sum(-1) / energy_N)[:, None]
