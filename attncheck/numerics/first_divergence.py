"""The first module, in the order of execution, whose output differs between two forwards.

If a module's input agrees and its output does not, the fault is in that module. If its input
differs although every earlier output agrees, the fault is in the code around it.

Axes: B batch, T positions, K numbers kept for each position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.core.measurement import BEYOND_ROUNDING
from attncheck.numerics.divergence import beyond_at, max_abs
from attncheck.numerics.module_outputs import Event, ModuleOutputs


@final
@dataclass(frozen=True)
class FirstDivergence:
    """The first event that differs, the first position where it does, and by how much."""

    event: Event
    position: int
    max_abs_diff: float

    @property
    def home(self) -> str:
        """The module at fault: the event's own, or the one around it where the input differs."""
        name, side = self.event
        return (name.rpartition(".")[0] if side == "in" else name) or name


def first_divergence(
    good: ModuleOutputs,
    bad: ModuleOutputs,
    *,
    real_BT: Tensor | None = None,
    times: float = BEYOND_ROUNDING,
    eps: float | None = None,
    lost_anywhere: bool = False,
    skip_parts: bool = False,
) -> FirstDivergence | None:
    """The first event of `good` that differs in `bad` by more than `times` its rounding floor.

    Compared at the positions of `real_BT`; NaN is always beyond the floor. `eps` is the precision
    of the coarser forward, else that of the fingerprints. With `lost_anywhere`, an output that
    stops being finite under padding differs as well. With `skip_parts`, outputs of unequal widths
    are not compared: one is a part of a sharded output.
    """
    for event, right in good.items():
        wrong = bad.get(event)
        if wrong is None or (skip_parts and wrong.width != right.width):
            continue
        good_BTK, bad_BTK = right.print_BTK.double(), wrong.print_BTK.double()
        if good_BTK.shape != bad_BTK.shape:
            return FirstDivergence(event, 0, math.inf)
        kept_BT = torch.ones(good_BTK.shape[:2]).bool() if real_BT is None else real_BT
        kept = good_BTK[kept_BT]
        least = (eps or torch.finfo(right.print_BTK.dtype).eps) * max_abs(kept[kept.isfinite()])
        budget = times * max(right.floor, wrong.floor, least)
        wrong_BT = beyond_at(good_BTK, bad_BTK, budget, -1) & kept_BT
        if lost_anywhere:
            wrong_BT |= good_BTK.isfinite().all(-1) & ~bad_BTK.isfinite().all(-1)
        if bool(wrong_BT.any()):
            delta = (good_BTK - bad_BTK).abs()[kept_BT].nan_to_num(math.inf, math.inf)
            return FirstDivergence(event, int(wrong_BT.any(0).nonzero()[0]), max_abs(delta))
    return None
