"""Attention in another form than on the trusted path, such as absorbed projections: its queries and
keys cannot be compared, but the scale of its scores can be fitted to its output.

Axes: B batch, H heads, T positions, D value width, W their width together, N changed outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.reference import attend
from attncheck.observation.calls import RightLayer

STEPS = 40
STEP = 1e-6
FARTHEST = 2.0


def rescaled(
    right: RightLayer, observed_BTW: Tensor, right_BTW: Tensor
) -> tuple[float, Tensor] | None:
    """The factor on the scale, and states_BTW with it where outputs differ; None where no factor
    gives the observed ones, or where the states are not the outputs of this attention.
    """
    limit = right.limit(right_BTW)
    context_BTW = right.context_BTHD.flatten(2)
    if context_BTW.shape != right_BTW.shape or not _close(context_BTW, right_BTW, limit):
        return None
    wrong_BT = ((observed_BTW - right_BTW).abs() > limit).any(-1)
    if right.real_BT is not None:
        wrong_BT &= right.real_BT
    target_NW = observed_BTW[wrong_BT]

    def outputs(factor: float) -> Tensor:
        params = replace(right.params, scale=right.params.scale * factor)
        states = right.query_BHTD, right.key_BGTD, right.value_BGTD
        return attend(*states, params, at_least=torch.float32).flatten(2)[wrong_BT]

    factor = _fitted(outputs, target_NW)
    fitted_NW = outputs(factor)
    if not _close(fitted_NW, target_NW, 10 * limit):
        return None
    states_BTW = right_BTW.clone()
    states_BTW[wrong_BT] = fitted_NW
    return factor, states_BTW


def _close(left: Tensor, right: Tensor, limit: float) -> bool:
    return bool(((left - right).abs() <= limit).all())


def _fitted(outputs: Callable[[float], Tensor], target: Tensor) -> float:
    """The factor whose outputs are nearest to the target, by Gauss-Newton steps from 1."""
    factor = 1.0
    for _ in range(STEPS):
        here = outputs(factor)
        slope = (outputs(factor * (1 + STEP)) - here) / (factor * STEP)
        energy = float((slope * slope).sum())
        if not energy:
            break
        move = float((slope * (target - here)).sum()) / energy
        # far away the slope says little: no step changes the factor more than twofold
        factor = min(max(factor + move, factor / FARTHEST), factor * FARTHEST)
        if abs(move) <= torch.finfo(target.dtype).eps * factor:
            break
    return factor
