"""Two recordings compared: how far apart by position, who would choose another token, and which
module is first.

Axes: B batch, T positions, V vocabulary, N real tokens, K numbers kept for each position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.compare.record import RecordedForward, Recording
from attncheck.core.finding import BEYOND_ROUNDING
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.first_divergence import FirstDivergence, first_divergence

Sameness = Literal["identical", "rounding", "undecided", "different"]
TOP = (1, 5, 10)
SHARES = (0.5, 0.9, 0.99, 1.0)
RESOLVED = 1e-3
EPS = {"float64": 2.3e-16, "float32": 1.2e-7, "bfloat16": 7.9e-3, "float16": 9.8e-4}


@final
@dataclass(frozen=True, kw_only=True)
class ForwardComparison:
    """One way of asking on both sides. `by_position` is the largest difference at each T, `top` the
    share of equal top-k.
    """

    way: str
    verdict: Sameness
    max_abs: float
    budget: float
    scale: float
    nonfinite: int
    flips: int
    positions: int
    first_position: int | None
    by_position: tuple[float, ...]
    top: tuple[tuple[int, float], ...]
    kl: tuple[tuple[float, float], ...]
    first: FirstDivergence | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All ways of asking that both sides have, and the weights that are not the same."""

    left: Recording
    right: Recording
    ways: tuple[ForwardComparison, ...]
    weights: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def verdict(self) -> Sameness:
        """The worst of the ways; different where nothing could be compared."""
        order: tuple[Sameness, ...] = ("different", "undecided", "rounding", "identical")
        seen = {way.verdict for way in self.ways}
        return next((verdict for verdict in order if verdict in seen), "different")

    @property
    def worst(self) -> ForwardComparison | None:
        """The way that says the most: the plainest of those that differ."""
        return next((way for way in self.ways if way.verdict == self.verdict), None)


def compare(left: Recording, right: Recording) -> Comparison:
    """Every way that both recordings hold, in the order of the left one."""
    others = {way.name: way for way in right.ways}
    ways = [
        _apart(way, others[way.name], (left.dtype, right.dtype))
        for way in left.ways
        if way.name in others
    ]
    return Comparison(
        left=left,
        right=right,
        ways=tuple(ways),
        weights=tuple(_changed(left, right)),
        missing=tuple(sorted(set(left.weights) ^ set(right.weights))),
    )


def _changed(left: Recording, right: Recording) -> Iterator[str]:
    """Names of weights whose sums differ by more than the coarser precision explains."""
    slack = (
        4 * max(EPS.get(left.dtype, 1e-7), EPS.get(right.dtype, 1e-7))
        if left.dtype != right.dtype
        else 1e-9
    )
    for name, sums in left.weights.items():
        other = right.weights.get(name)
        if other is not None and not _same(sums, other, slack):
            yield name


def _same(left: Tensor, right: Tensor, slack: float) -> bool:
    """Sums of one tensor against another's, beside the sum of its sizes (the weighted one beside
    its own largest).
    """
    size = max(float(left[1]), float(right[1]), 1e-30)
    limits = (
        torch.tensor([size, size, max(float(left[2]), 1e-30), 8191 * size], dtype=torch.float64)
        * slack
    )
    return bool(((left - right).abs() <= limits).all())


def _apart(
    left: RecordedForward, right: RecordedForward, dtypes: tuple[str, str]
) -> ForwardComparison:
    if left.logits_BTV.shape != right.logits_BTV.shape:
        return _incomparable(left)
    left_NV, right_NV = (_wide(way.logits_BTV)[left.real_BT] for way in (left, right))
    finite_NV = torch.isfinite(left_NV) & torch.isfinite(right_NV)
    delta_NV = torch.where(finite_NV, (left_NV - right_NV).abs(), 0.0)
    budget = left.budget + right.budget
    by_T = _by_position(delta_NV.amax(-1), left.real_BT)
    scale = max_abs(torch.where(finite_NV, right_NV, 0.0))
    largest, lost = float(delta_NV.max()), int((~finite_NV).sum())
    wrong = [place for place, value in enumerate(by_T) if value > budget]
    return ForwardComparison(
        way=left.name,
        verdict=_verdict(largest, budget, scale, lost),
        max_abs=largest,
        budget=budget,
        scale=scale,
        nonfinite=lost,
        flips=int((left_NV.argmax(-1) != right_NV.argmax(-1)).sum()),
        positions=len(delta_NV),
        first_position=wrong[0] if wrong else None,
        by_position=tuple(by_T),
        top=tuple((k, _agreement(left_NV, right_NV, k)) for k in TOP if k < left_NV.shape[-1]),
        kl=tuple(zip(SHARES, _percentiles(left_NV, right_NV), strict=True)),
        first=first_of(left, right, dtypes) if largest else None,
    )


def _wide(logits_BTV: Tensor) -> Tensor:
    return logits_BTV.double()


def _incomparable(left: RecordedForward) -> ForwardComparison:
    return ForwardComparison(
        way=left.name,
        verdict="different",
        max_abs=float("inf"),
        budget=left.budget,
        scale=0.0,
        nonfinite=0,
        flips=0,
        positions=0,
        first_position=0,
        by_position=(),
        top=(),
        kl=(),
    )


def _verdict(largest: float, budget: float, scale: float, lost: int) -> Sameness:
    """Beyond rounding is different; within it is rounding, unless this precision is too coarse to
    tell.
    """
    if lost or largest > budget:
        return "different"
    if not largest:
        return "identical"
    return "rounding" if budget <= RESOLVED * scale else "undecided"


def _by_position(worst_N: Tensor, real_BT: Tensor) -> list[float]:
    spread_BT = torch.zeros(real_BT.shape, dtype=worst_N.dtype)
    spread_BT[real_BT] = worst_N
    return [float(value) for value in spread_BT.amax(0)]


def _agreement(left_NV: Tensor, right_NV: Tensor, k: int) -> float:
    """Mean share of the left top-k tokens that are among the right top-k."""
    left_NK, right_NK = left_NV.topk(k).indices, right_NV.topk(k).indices
    return float((left_NK[:, :, None] == right_NK[:, None, :]).any(-1).double().mean())


def _percentiles(left_NV: Tensor, right_NV: Tensor) -> list[float]:
    """KL(left || right) in nats at the median, the 90th and 99th percentile, and the largest."""
    left_log, right_log = left_NV.log_softmax(-1), right_NV.log_softmax(-1)
    kl_N = (left_log.exp() * (left_log - right_log)).sum(-1).nan_to_num(0.0).clamp_min(0.0)
    return [float(kl_N.quantile(share)) for share in SHARES]


def first_of(
    left: RecordedForward, right: RecordedForward, dtypes: tuple[str, str]
) -> FirstDivergence | None:
    """The first event of both sides that differs beyond rounding.

    Between equal precisions the limit is a multiple of the measured noise; between unequal ones, of
    the coarser's.
    """
    return first_divergence(
        left.outputs,
        right.outputs,
        real_BT=left.real_BT,
        times=BEYOND_ROUNDING if "float64" in dtypes and dtypes[0] == dtypes[1] else 8.0,
        eps=max(EPS.get(dtype, 1e-7) for dtype in dtypes),
    )
