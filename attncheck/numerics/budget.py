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
    forward: Callable[[], Tensor],
    plain_BTV: Tensor,
    dtype: str,
    context: Callable[[], AbstractContextManager[object]],
    nudged_tables: Callable[[], AbstractContextManager[object]] | None = None,
) -> Budget:
    """Run `forward` in other summation orders and compare with `plain_BTV`, its logits in the usual order.

    `nudged_tables` is a context in which stored tables carry another rounding, for models that have any.
    """
    floors = []
    for share in SHARES:
        with context(), Reorder(share):
            floors.append(_largest(forward(), plain_BTV))
    scale = _largest(plain_BTV, torch.zeros_like(plain_BTV))
    least = torch.finfo(plain_BTV.dtype).eps * scale
    floor, what = max(least, *floors), "reorder floor"
    if nudged_tables is not None:
        with context(), nudged_tables():
            rounded = _largest(forward(), plain_BTV)
        floor, what = (rounded, "rounding of stored tables") if rounded > floor else (floor, what)
    return Budget(value=HEADROOM * floor, floor=floor, source=f"{dtype} {what} {floor:.1e} x {HEADROOM:.0f}")


def _largest(left_BTV: Tensor, right_BTV: Tensor) -> float:
    delta_BTV = (left_BTV - right_BTV).abs()
    finite = delta_BTV[torch.isfinite(delta_BTV)]
    return float(finite.max()) if finite.numel() else 0.0
