"""How far rotated states are from what is expected, and a layer's queries from its keys.

Axes: B batch, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from attncheck.attention.rope_spec import COMPUTED_IN
from attncheck.judge.rotated_states import RotatedStates
from attncheck.numerics.budget import HEADROOM


@final
@dataclass(frozen=True, kw_only=True)
class AngleDifference:
    """How far, in radians, rotated states are from what is expected, where that is worst."""

    states: RotatedStates
    radians: float
    budget: float
    text: str = ""

    @property
    def excess(self) -> float:
        """The difference in budgets."""
        return self.radians / self.budget


def between(found: list[RotatedStates], rounding: float) -> Iterator[AngleDifference]:
    """Queries and keys of a layer must have the same positions: the same angle at the first. What
    multiplies both is a gain of the tables, whose entries are rounded by `rounding`.
    """
    queries = {each.name: each for each in found if each.what == "queries"}
    for keys in found:
        query = queries.get(keys.name)
        if keys.what == "keys" and query and query.pairs == keys.pairs > 0:
            yield _offset(query, keys, rounding)
            yield from _shared_gain(query, keys, rounding)


def _offset(queries: RotatedStates, keys: RotatedStates, rounding: float) -> AngleDifference:
    query, key = queries.observed, keys.observed
    between_BP = query.factor_BTP[:, 0] * key.factor_BTP[:, 0].conj()
    radians_P = between_BP.angle().abs().amax(0)
    budget_P = HEADROOM * rounding + query.noise_P + key.noise_P
    worst = int((radians_P / budget_P).argmax())
    radians = float(radians_P[worst])
    text = f"at the first token pair {worst} is {radians:.4g} away from that of the queries"
    return AngleDifference(states=keys, radians=radians, budget=float(budget_P[worst]), text=text)


def _shared_gain(
    queries: RotatedStates, keys: RotatedStates, rounding: float
) -> Iterator[AngleDifference]:
    """A gain of tables whose rotation has none by the config."""
    specs = keys.specs if isinstance(keys.specs, list) else []
    if not specs or any(each.gain != 1.0 for each in specs):
        return
    gain, other = keys.observed.gain, queries.observed.gain
    noise = float((queries.observed.noise_P + keys.observed.noise_P).max())
    budget = HEADROOM * (torch.finfo(COMPUTED_IN).eps + rounding) + noise
    if abs(gain / other - 1) > budget or keys.is_known_factor(gain, False):
        return
    text = f"rotated channels are multiplied by {gain:.6g} instead of 1, those of queries too"
    text += f" (config: {specs[0].origin})"
    yield AngleDifference(states=keys, radians=abs(gain - 1), budget=budget, text=text)
