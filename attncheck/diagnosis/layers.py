"""How a difference grows from layer to layer, for the picture of a located failure.

Axes: B batch, T positions, K numbers kept for each position.
"""

from __future__ import annotations

import math

from torch import Tensor

from attncheck.attention.layers import is_list_member
from attncheck.numerics.module_outputs import Trace


def by_layer(shape: tuple[int, int], rows_BT: Tensor, good: Trace, bad: Trace) -> tuple[float, ...]:
    """The largest difference of the fingerprints of each numbered layer's output, in the order of
    execution.
    """
    names = [name for name, kind in good.prints if kind == "out" and is_list_member(name)]
    outermost = min((name.count(".") for name in names), default=0)
    found = []
    for name in (name for name in names if name.count(".") == outermost):
        good_BTK, bad_BTK = (trace.print_BTK((name, "out"), shape) for trace in (good, bad))
        if good_BTK is not None and bad_BTK is not None:
            found.append(_figure((good_BTK - bad_BTK)[rows_BT].abs()))
    return tuple(found)


def _figure(apart_NK: Tensor) -> float:
    largest = float(apart_NK.max()) if apart_NK.numel() else 0.0
    return float(f"{largest:.2e}") if math.isfinite(largest) else math.inf
