"""Budgets: how far rounding alone moves the logits of a model, measured and never guessed.

The floor is the largest logit difference between a forward and the same mathematics in another
order (`attncheck.numerics.reorder`). Two orders are tried, so that one lucky order does not set the
budget.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor

from attncheck.core.measurement import BEYOND_ROUNDING
from attncheck.numerics.constants import free
from attncheck.numerics.divergence import max_abs_finite, slices
from attncheck.numerics.reorder import Reorder

SHARES = (0.5, 0.3)
HEADROOM = 4.0
"""A floor is the worst of two orders, and another order can be unluckier: over 193 architectures
and 13000 healthy cases in float64, the largest difference was 2.3 floors.
"""


USUAL = 16.0
"""The usual floor, in units of the last place of the logits; taken where none can be measured."""


Roundings = Mapping[str, Callable[[], AbstractContextManager[object]]]
"""Contexts in which something rounds otherwise, by what it is."""


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
    others: Roundings = MappingProxyType({}),
) -> Budget:
    """Run `forward` in other summation orders and compare with `plain_BTV`, its logits in the usual
    order.

    `others` are contexts in which something else than operators rounds otherwise, by what it is:
    stored tables, the kernels of quantized layers.
    """
    floors = [_largest(_reordered(forward, context, share), plain_BTV) for share in SHARES]
    least = torch.finfo(plain_BTV.dtype).eps * max_abs_finite(free(plain_BTV))
    what, suspect = "reorder floor", max(floors) > BEYOND_ROUNDING * least
    if suspect and _unsteady(forward, plain_BTV, context):
        # with the same random numbers both orders may agree: what the plain forward drew is no
        # rounding
        floors = [_between_orders(forward, context)]
        if floors[0] > BEYOND_ROUNDING * least:
            floors, what = [USUAL * least], "rounding, as the same forward twice is not the same,"
    floor = max(least, *floors)
    for name, otherwise in others.items():
        with context(), otherwise():
            rounded = _largest(forward(), plain_BTV)
        floor, what = (rounded, f"rounding of {name}") if rounded > floor else (floor, what)
    return Budget(
        value=HEADROOM * floor, floor=floor, source=f"{dtype} {what} {floor:.1e} x {HEADROOM:.0f}"
    )


def _between_orders(
    forward: Callable[[], Tensor], context: Callable[[], AbstractContextManager[object]]
) -> float:
    one_BTV, other_BTV = (_reordered(forward, context, share) for share in SHARES)
    return _largest(one_BTV, other_BTV)


def _reordered(
    forward: Callable[[], Tensor],
    context: Callable[[], AbstractContextManager[object]],
    share: float,
) -> Tensor:
    with context(), Reorder(share), _same_draws():
        return forward()


def _unsteady(
    forward: Callable[[], Tensor],
    plain_BTV: Tensor,
    context: Callable[[], AbstractContextManager[object]],
) -> bool:
    """Whether the same forward in the same order gives something else: the model draws random
    numbers, or keeps something of earlier calls. It runs twice: what is kept may come round.
    """
    with context():
        return any(_largest(forward(), plain_BTV) > 0.0 for _ in range(2))


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """Random numbers as after a fixed seed, for a model that draws some although it is in
    evaluation mode.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def _largest(left_BTV: Tensor, right_BTV: Tensor) -> float:
    return max(
        max_abs_finite(left - right)
        for left, right in zip(slices(left_BTV), slices(right_BTV), strict=True)
    )
