"""How far two logit tensors are apart.

Axes: B batch, T positions, V vocabulary, N compared rows (B x T flattened).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import final

import torch
from torch import Tensor

from attncheck.core.divergence import Divergence, Profile
from attncheck.numerics.constants import free

KL_ROWS = 8
MOST_STRETCHES = 96
SLICE = 1 << 17
"""Numbers compared at a time: what a comparison needs beside the two tensors is a few times this,
whatever their length.
"""


def compare_logits(got_BTV: Tensor, want_BTV: Tensor, budget: float, offset: int = 0) -> Divergence:
    """Compare two tensors of one shape; `first_position` is the first T (plus `offset`) with |Δ|
    above `budget`.

    Values that are not finite are counted first and left out of every maximum: `max([1.0, nan])` is
    1.0.

    Raises:
        ValueError: the shapes differ.
    """
    if got_BTV.shape != want_BTV.shape:
        raise ValueError(
            f"cannot compare logits {tuple(got_BTV.shape)} with {tuple(want_BTV.shape)}"
        )
    if got_BTV.numel() == 0:
        return Divergence(max_abs=0.0, mean_abs=0.0, kl=0.0, top1_flips=0, positions=0, scale=0.0)
    if torch.equal(got_BTV, want_BTV) and isfinite(
        size := max(max_abs(free(each)) for each in slices(want_BTV))
    ):
        return _identical(want_BTV, size)
    return _measured(got_BTV, want_BTV, budget, offset)


def slices(logits_BTV: Tensor) -> tuple[Tensor, ...]:
    """Stretches of T of at most `SLICE` numbers each: what is computed from logits never needs a
    copy of them all.
    """
    size = max(1, SLICE // max(1, logits_BTV.shape[0] * logits_BTV.shape[2]))
    return tuple(
        logits_BTV[:, start : start + size] for start in range(0, logits_BTV.shape[1], size)
    )


def max_abs(values: Tensor) -> float:
    """The largest absolute value: NaN where any value is NaN, 0 for an empty tensor."""
    return float(values.abs().max()) if values.numel() else 0.0


def max_abs_diff(got: Tensor, want: Tensor | float) -> float:
    """The largest absolute difference. It is NaN where either side has a NaN; equal infinities are
    equal.
    """
    return max_abs(_difference(got, want))


def _difference(got: Tensor, want: Tensor | float) -> Tensor:
    delta = got - want
    return delta if torch.isfinite(delta).all() else torch.where(got == want, 0.0, delta)


def beyond(got: Tensor, want: Tensor | float, budget: float) -> bool:
    """Whether two tensors differ by more than the budget. A NaN or an infinity on either side
    always does.
    """
    return not max_abs_diff(got, want) <= budget  # `>` would take NaN for agreement


def finitely_beyond(got: Tensor, want: Tensor, budget: float) -> bool:
    """`beyond` of two finite tensors. What excuses a case from being measured has to be this:
    values that are not finite are for the case itself to count.
    """
    return isfinite(max_abs_diff(got, want)) and beyond(got, want, budget)


def beyond_at(got: Tensor, want: Tensor, budget: float, reduced: int | tuple[int, ...]) -> Tensor:
    """`beyond` at each place of the axes that are left when `reduced` are taken together."""
    return ~(_difference(got, want).abs().amax(reduced) <= budget)


def max_abs_finite(logits_BTV: Tensor) -> float:
    """The largest absolute value of any finite number, 0 where there is none."""
    return max(map(_max_abs_finite, slices(logits_BTV)), default=0.0)


def holes(logits_BTV: Tensor) -> int:
    """How many numbers are not finite."""
    return sum(int(each.numel() - torch.isfinite(each).sum()) for each in slices(logits_BTV))


def _max_abs_finite(part_BTV: Tensor) -> float:
    worst = max_abs(part_BTV)
    return (
        worst if isfinite(worst) else max_abs(torch.where(torch.isfinite(part_BTV), part_BTV, 0.0))
    )


def _wide(logits_BTV: Tensor) -> Tensor:
    return logits_BTV if logits_BTV.dtype in (torch.float32, torch.float64) else logits_BTV.float()


def _identical(want_BTV: Tensor, scale: float) -> Divergence:
    return Divergence(
        max_abs=0.0,
        mean_abs=0.0,
        kl=0.0,
        top1_flips=0,
        positions=want_BTV.shape[0] * want_BTV.shape[1],
        scale=scale,
    )


@final
@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one stretch of T comes to."""

    worst_BT: Tensor
    total: float
    flips: int
    nonfinite: int
    lost_T: Tensor
    scale: float


def _part(got_BTV: Tensor, want_BTV: Tensor) -> _Part:
    got_BTV, want_BTV = _wide(got_BTV), _wide(want_BTV)
    delta_BTV = (got_BTV - want_BTV).abs_()
    worst_BT = delta_BTV.amax(-1)
    if not torch.isfinite(worst_BT).all():
        return _part_with_holes(got_BTV, want_BTV, delta_BTV)
    return _Part(
        worst_BT=worst_BT,
        total=float(delta_BTV.sum(dtype=torch.float64)),
        flips=_flips(got_BTV, want_BTV),
        nonfinite=0,
        lost_T=worst_BT.new_zeros(worst_BT.shape[1], dtype=torch.bool),
        scale=max_abs(free(want_BTV)),
    )


def _flips(got_BTV: Tensor, want_BTV: Tensor) -> int:
    return int((got_BTV.argmax(-1) != want_BTV.argmax(-1)).sum())


def _part_with_holes(got_BTV: Tensor, want_BTV: Tensor, delta_BTV: Tensor) -> _Part:
    """The same where some numbers are not finite: they are counted and left out of maxima."""
    same_BTV = got_BTV == want_BTV
    finite_BTV = same_BTV | (torch.isfinite(got_BTV) & torch.isfinite(want_BTV))
    delta_BTV = torch.where(same_BTV, 0.0, delta_BTV)
    delta_BTV = torch.where(finite_BTV, delta_BTV, 0.0)
    return _Part(
        worst_BT=delta_BTV.amax(-1),
        total=float(delta_BTV.sum(dtype=torch.float64)),
        flips=_flips(got_BTV, want_BTV),
        nonfinite=int(finite_BTV.numel() - finite_BTV.sum()),
        lost_T=~finite_BTV.all(-1).all(0),
        scale=max_abs(free(torch.where(torch.isfinite(want_BTV), want_BTV, 0.0))),
    )


def _measured(got_BTV: Tensor, want_BTV: Tensor, budget: float, offset: int) -> Divergence:
    parts = [_part(got, want) for got, want in zip(slices(got_BTV), slices(want_BTV), strict=True)]
    worst_BT = torch.cat([part.worst_BT for part in parts], 1)
    wrong_T = (worst_BT > budget).any(0) | torch.cat([part.lost_T for part in parts])
    stride = -(-worst_BT.shape[1] // MOST_STRETCHES)
    first = int(wrong_T.nonzero()[0]) + offset if bool(wrong_T.any()) else None
    return Divergence(
        max_abs=float(worst_BT.max()),
        mean_abs=sum(part.total for part in parts) / got_BTV.numel(),
        kl=_largest_kl(got_BTV, want_BTV, worst_BT),
        top1_flips=sum(part.flips for part in parts),
        positions=worst_BT.numel(),
        first_position=first,
        scale=max(part.scale for part in parts),
        nonfinite=sum(part.nonfinite for part in parts),
        profile=Profile(
            () if first is None else _profile(worst_BT.amax(0), stride), offset, stride
        ),
    )


def _profile(worst_T: Tensor, stride: int) -> tuple[float, ...]:
    """The largest value of each stretch, to three figures: what a picture needs."""
    starts = range(0, worst_T.shape[0], stride)
    return tuple(float(f"{float(worst_T[start : start + stride].max()):.2e}") for start in starts)


def _largest_kl(got_BTV: Tensor, want_BTV: Tensor, worst_BT: Tensor) -> float:
    """Largest KL(want || got) over the rows that differ most: those are the rows that could hold
    it.
    """
    worst_N = worst_BT.flatten().topk(min(KL_ROWS, worst_BT.numel())).indices
    found = [
        _kl(*(each_BTV[divmod(row, worst_BT.shape[1])] for each_BTV in (got_BTV, want_BTV)))
        for row in worst_N.tolist()
    ]
    return max((each for each in found if isfinite(each)), default=0.0)


def _kl(got_V: Tensor, want_V: Tensor) -> float:
    """KL(want || got) of one position in float64; a negative one is rounding."""
    got_V, want_V = got_V.double().log_softmax(-1), want_V.double().log_softmax(-1)
    return max(0.0, float(torch.dot(want_V.exp(), want_V - got_V)))
