"""How far two tensors differ, as numbers, and when that is too far. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final


def excess(amount: float, allowed: float) -> float:
    """How many times the allowed amount this is; infinite where either number is NaN."""
    ratio = amount / allowed if allowed else (math.inf if amount else 0.0)
    return math.inf if math.isnan(ratio) else ratio


@final
@dataclass(frozen=True, kw_only=True)
class PrecisionLevel:
    """One level of the precision escalation: the same case measured in another dtype."""

    dtype: str
    max_abs: float
    budget: float


@final
@dataclass(frozen=True)
class Profile:
    """The largest difference in each stretch of `stride` positions, from position `start` on."""

    values: tuple[float, ...] = ()
    start: int = 0
    stride: int = 1


@final
@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How far two tensors differ: largest and mean absolute difference, KL (nats) at the worst
    positions, argmax flips, and where it starts.

    Maxima leave out values that are not finite; `nonfinite` counts them. `scale` is the largest
    absolute value of the reference.
    """

    max_abs: float
    positions: int
    mean_abs: float | None = None
    kl: float | None = None
    top1_flips: int | None = None
    first_position: int | None = None
    scale: float | None = None
    nonfinite: int = 0
    profile: Profile = Profile()
