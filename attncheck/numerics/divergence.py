"""How far two logit tensors are apart.

Axes: B batch, T positions, V vocabulary, N compared rows (B x T flattened).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

KL_ROWS = 8
MOST_STRETCHES = 96


@final
@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Largest and mean absolute logit difference, KL (nats) at the worst rows, argmax flips, and where it starts.

    `profile` is the largest difference in each stretch of `stride` positions from `start` on, where any is above the budget.
    """

    max_abs: float
    mean_abs: float
    kl: float
    top1_flips: int
    positions: int
    first_position: int | None
    scale: float
    nonfinite: int
    profile: tuple[float, ...] = ()
    start: int = 0
    stride: int = 1


def compare_logits(got_BTV: Tensor, want_BTV: Tensor, budget: float, offset: int = 0) -> Divergence:
    """Compare two tensors of one shape; `first_position` is the first T (plus `offset`) with |Δ| above `budget`.

    Values that are not finite are counted first and left out of every maximum: `max([1.0, nan])` is 1.0.

    Raises:
        ValueError: the shapes differ.
    """
    if got_BTV.shape != want_BTV.shape:
        raise ValueError(f"cannot compare logits {tuple(got_BTV.shape)} with {tuple(want_BTV.shape)}")
    if got_BTV.numel() == 0:
        return Divergence(
            max_abs=0.0, mean_abs=0.0, kl=0.0, top1_flips=0, positions=0, first_position=None, scale=0.0, nonfinite=0
        )
    if torch.equal(got_BTV, want_BTV) and bool(torch.isfinite(want_BTV).all()):
        return _identical(want_BTV)
    return _measured(_wide(got_BTV), _wide(want_BTV), budget, offset)


def _wide(logits_BTV: Tensor) -> Tensor:
    return logits_BTV if logits_BTV.dtype in (torch.float32, torch.float64) else logits_BTV.float()


def _identical(want_BTV: Tensor) -> Divergence:
    return Divergence(
        max_abs=0.0,
        mean_abs=0.0,
        kl=0.0,
        top1_flips=0,
        positions=want_BTV.shape[0] * want_BTV.shape[1],
        first_position=None,
        scale=float(want_BTV.abs().max()),
        nonfinite=0,
    )


def _measured(got_BTV: Tensor, want_BTV: Tensor, budget: float, offset: int) -> Divergence:
    finite_BTV = torch.isfinite(got_BTV) & torch.isfinite(want_BTV)
    nonfinite = int(finite_BTV.numel() - finite_BTV.sum())
    delta_BTV = (got_BTV - want_BTV).abs()
    if nonfinite:
        delta_BTV = torch.where(finite_BTV, delta_BTV, 0.0)
    worst_BT = delta_BTV.amax(-1)
    wrong_T = (worst_BT > budget).any(0) | ~finite_BTV.all(-1).all(0)
    stride = -(-worst_BT.shape[1] // MOST_STRETCHES)
    first = int(wrong_T.nonzero()[0]) + offset if bool(wrong_T.any()) else None
    return Divergence(
        max_abs=float(worst_BT.max()),
        mean_abs=float(delta_BTV.mean()),
        kl=_largest_kl(got_BTV, want_BTV, worst_BT),
        top1_flips=int((got_BTV.argmax(-1) != want_BTV.argmax(-1)).sum()),
        positions=worst_BT.numel(),
        first_position=first,
        scale=float(torch.where(finite_BTV, want_BTV, 0.0).abs().max()),
        nonfinite=nonfinite,
        profile=() if first is None else _profile(worst_BT.amax(0), stride),
        start=offset,
        stride=stride,
    )


def _profile(worst_T: Tensor, stride: int) -> tuple[float, ...]:
    """The largest value of each stretch, to three figures: what a picture needs."""
    starts = range(0, worst_T.shape[0], stride)
    return tuple(float(f"{float(worst_T[start : start + stride].max()):.2e}") for start in starts)


def _largest_kl(got_BTV: Tensor, want_BTV: Tensor, worst_BT: Tensor) -> float:
    """Largest KL(want || got) over the rows that differ most: those are the rows that could hold it."""
    rows_N = worst_BT.flatten().topk(min(KL_ROWS, worst_BT.numel())).indices
    got_NV = got_BTV.flatten(0, 1)[rows_N].double().log_softmax(-1)
    want_NV = want_BTV.flatten(0, 1)[rows_N].double().log_softmax(-1)
    kl_N = (want_NV.exp() * (want_NV - got_NV)).sum(-1)
    finite_N = kl_N[torch.isfinite(kl_N)]
    return max(0.0, float(finite_N.max())) if finite_N.numel() else 0.0
