"""Two recordings compared: the difference by position, the best tokens, and the first module.

Axes: B batch, T positions, V vocabulary, N real tokens, K numbers kept for each position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.compare.calls import PLAIN
from attncheck.compare.record import RecordedForward, Recording
from attncheck.core.measurement import BEYOND_ROUNDING
from attncheck.model.weights import same_digest
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.first_divergence import FirstDivergence, first_divergence

Sameness = Literal["identical", "rounding", "undecided", "different"]
ORDER: tuple[Sameness, ...] = ("different", "undecided", "rounding", "identical")
TOP = (1, 5, 10)
SHARES = (0.5, 0.9, 0.99, 1.0)
RESOLVED = 1e-3
EPS = {"float64": 2.3e-16, "float32": 1.2e-7, "bfloat16": 7.9e-3, "float16": 9.8e-4}
FEW_EPS = 8.0
"""How many eps may separate module outputs of unequal precisions."""


@final
@dataclass(frozen=True, kw_only=True)
class ForwardComparison:
    """One forward on both sides.

    `by_position` is the largest difference at each T, `top` the share of equal top-k tokens, `kl`
    the KL divergence at each percentile.
    """

    way: str
    verdict: Sameness
    max_abs: float
    budget: float
    scale: float = 0.0
    nonfinite: int = 0
    flips: int = 0
    positions: int = 0
    first_position: int | None = 0
    by_position: tuple[float, ...] = ()
    top: tuple[tuple[int, float], ...] = ()
    kl: tuple[tuple[float, float], ...] = ()
    first: FirstDivergence | None = None


@final
@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """All forwards that both sides have, the weights that differ, and those of one side only."""

    left: Recording
    right: Recording
    forwards: tuple[ForwardComparison, ...]
    weights: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def verdict(self) -> Sameness:
        """The worst of the forwards; different where nothing could be compared."""
        return self.worst.verdict if self.worst else "different"

    @property
    def worst(self) -> ForwardComparison | None:
        """The first, and so the plainest, of the forwards with the worst verdict."""
        return min(self.forwards, key=lambda each: ORDER.index(each.verdict), default=None)


def compare(left: Recording, right: Recording) -> RunComparison:
    """Every forward that both recordings hold, in the order of the left one."""
    others = {each.name: each for each in right.forwards}
    dtypes = (left.dtype, right.dtype)
    return RunComparison(
        left=left,
        right=right,
        forwards=tuple(
            _compared(each, others[each.name], dtypes)
            for each in left.forwards
            if each.name in others
        ),
        weights=tuple(_changed(left, right)),
        missing=tuple(sorted(set(left.weights) ^ set(right.weights))),
    )


def with_rounding(found: RunComparison) -> RunComparison:
    """The comparison where what separates the two plain forwards was proven to be rounding: tables
    and sums of both sides in the precisions that they really have. Other calls may be a few times
    that far apart.
    """
    proven = max((each.max_abs for each in found.forwards if each.way == PLAIN), default=0.0)
    return replace(found, forwards=tuple(_allowing(each, proven) for each in found.forwards))


def unless_finer(found: RunComparison, raised: RunComparison) -> RunComparison:
    """A comparison in float64 of what only rounding separates in a lower precision, where nothing
    could be named: calls that float64 brings below the noise of the lower one hold, since values
    that both sides keep in float32 are no more exact there.
    """
    floors = {each.way: each.budget / HEADROOM for each in found.forwards}
    calm = found.verdict in ("rounding", "identical")
    forwards = (_within(each, floors.get(each.way, 0.0)) for each in raised.forwards)
    return replace(raised, forwards=tuple(forwards)) if calm else raised


def _within(found: ForwardComparison, floor: float) -> ForwardComparison:
    if found.verdict != "different" or found.nonfinite or found.max_abs > floor:
        return found
    return replace(found, verdict="rounding", budget=floor, first_position=None)


def _allowing(found: ForwardComparison, proven: float) -> ForwardComparison:
    budget = max(found.budget, HEADROOM * proven)
    if found.verdict != "different" or found.nonfinite or found.max_abs > budget:
        return found
    verdict = _verdict(found.max_abs, budget, found.scale, found.nonfinite)
    return replace(found, verdict=verdict, budget=budget, first_position=None)


def _changed(left: Recording, right: Recording) -> Iterator[str]:
    """Names of weights whose sums differ by more than the coarser precision explains."""
    slack = 1e-9  # sums of equal weights differ by their order of summation only
    if left.dtype != right.dtype:
        slack = 4 * max(EPS.get(left.dtype, 1e-7), EPS.get(right.dtype, 1e-7))
    for name, sums in left.weights.items():
        other = right.weights.get(name)
        if other is not None and not same_digest(sums, other, slack):
            yield name


def _compared(
    left: RecordedForward, right: RecordedForward, dtypes: tuple[str, str]
) -> ForwardComparison:
    if left.logits_BTV.shape[:2] != right.logits_BTV.shape[:2]:
        return ForwardComparison(
            way=left.name, verdict="different", max_abs=float("inf"), budget=left.budget
        )
    # rows of the vocabulary that only one side has are padding of its table
    both = min(each.logits_BTV.shape[-1] for each in (left, right))
    left_NV, right_NV = (
        each.logits_BTV.double()[left.real_BT][..., :both] for each in (left, right)
    )
    finite_NV = torch.isfinite(left_NV) & torch.isfinite(right_NV)
    delta_NV = torch.where(finite_NV, (left_NV - right_NV).abs(), 0.0)
    budget = left.budget + right.budget
    by_T = _by_position(delta_NV.amax(-1), left.real_BT)
    scale = max_abs(torch.where(finite_NV, right_NV, 0.0))
    largest, lost = float(delta_NV.max()), int((~finite_NV).sum())
    return ForwardComparison(
        way=left.name,
        verdict=_verdict(largest, budget, scale, lost),
        max_abs=largest,
        budget=budget,
        scale=scale,
        nonfinite=lost,
        flips=int((left_NV.argmax(-1) != right_NV.argmax(-1)).sum()),
        positions=len(delta_NV),
        first_position=next((place for place, value in enumerate(by_T) if value > budget), None),
        by_position=tuple(by_T),
        top=tuple((k, _agreement(left_NV, right_NV, k)) for k in TOP if k < left_NV.shape[-1]),
        kl=tuple(zip(SHARES, _percentiles(left_NV, right_NV), strict=True)),
        first=_first(left, right, dtypes) if largest else None,
    )


def _verdict(largest: float, budget: float, scale: float, lost: int) -> Sameness:
    """Within the budget it is rounding, unless this precision is too coarse to tell."""
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
    shared_N = (left_NK[:, :, None] == right_NK[:, None, :]).sum((1, 2))
    return float(shared_N.double().mean() / k)


def _percentiles(left_NV: Tensor, right_NV: Tensor) -> list[float]:
    """KL(left || right) in nats at the median, the 90th and 99th percentile, and the largest."""
    left_log, right_log = left_NV.log_softmax(-1), right_NV.log_softmax(-1)
    kl_N = (left_log.exp() * (left_log - right_log)).sum(-1).nan_to_num(0.0).clamp_min(0.0)
    return [float(kl_N.quantile(share)) for share in SHARES]


def _first(
    left: RecordedForward, right: RecordedForward, dtypes: tuple[str, str]
) -> FirstDivergence | None:
    """The first module that differs beyond rounding.

    In float64 the limit is a multiple of the measured noise; otherwise a few eps of the coarser
    precision.
    """
    return first_divergence(
        left.outputs,
        right.outputs,
        real_BT=left.real_BT,
        times=BEYOND_ROUNDING if set(dtypes) == {"float64"} else FEW_EPS,
        eps=max(EPS.get(dtype, 1e-7) for dtype in dtypes),
        skip_parts=True,
    )
