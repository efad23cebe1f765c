"""Budgets: how far rounding alone carries these logits on this model, measured, never guessed.

The floor is the largest logit difference between a forward and the same mathematics in another order
(`attncheck.numerics.reorder`). Two orders are tried, so that one lucky order does not set the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.numerics.reorder import Reorder

SHARES = (0.5, 0.3)
HEADROOM = 4.0
"""A floor is the worst of two orders, and another order can be unluckier: decode against full stayed within one floor."""


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """The largest difference that rounding explains, and where the number comes from."""

    value: float
    floor: float
    source: str


def measure_budget(
    forward: Callable[[], Tensor], plain_BTV: Tensor, dtype: str, context: Callable[[], AbstractContextManager[object]]
) -> Budget:
    """Run `forward` in other summation orders and compare with `plain_BTV`, its logits in the usual order."""
    floors = []
    for share in SHARES:
        with context(), Reorder(share):
            floors.append(_largest(forward(), plain_BTV))
    scale = _largest(plain_BTV, torch.zeros_like(plain_BTV))
    least = torch.finfo(plain_BTV.dtype).eps * scale
    floor = max(least, *floors)
    return Budget(value=HEADROOM * floor, floor=floor, source=f"{dtype} reorder floor {floor:.1e} x {HEADROOM:.0f}")


def _largest(left_BTV: Tensor, right_BTV: Tensor) -> float:
    delta_BTV = (left_BTV - right_BTV).abs()
    finite = delta_BTV[torch.isfinite(delta_BTV)]
    return float(finite.max()) if finite.numel() else 0.0
