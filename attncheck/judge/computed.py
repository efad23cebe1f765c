"""One layer's attention computed here: from which queries and keys, and how far what the layer put
out is from it.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.reference import AttentionParams, attend, noise_floor
from attncheck.judge.call_position import Standing
from attncheck.judge.config_spec import known_factor
from attncheck.judge.formed import Formed, formed, new_slots
from attncheck.judge.layer_spec import Known
from attncheck.judge.layers import Attended
from attncheck.judge.projections import ROUNDINGS, Source, source_of
from attncheck.numerics.budget import HEADROOM

COARSE = 1e-3
"""Where rounding alone moves lengths by this part, a projection cannot be told from another one by
its lengths.
"""


@final
@dataclass(frozen=True)
class Computed:
    """One layer with the queries and keys, in float64, that its output is computed from."""

    layer: Attended
    query_BHTD: Tensor
    key_BGSD: Tensor
    standing: Standing

    @property
    def real_B1T1(self) -> Tensor:
        """Which queries are tokens, and count."""
        return self.standing.real_BT(self.query_BHTD.device)[:, None, :, None]

    @property
    def positions(self) -> int:
        """How many queries count."""
        rows, _, length, _ = self.query_BHTD.shape
        return int(self.real_B1T1[:, 0, :, 0].expand(rows, length).sum())

    @property
    def size(self) -> float:
        """The largest output."""
        return float(self._counted(self.layer.context_BTHD.double().abs()).max())

    def apart(self, terms: AttentionParams) -> float:
        """The largest difference between the layer's output and attention with these ingredients."""
        got_BTHD = attend(
            self.query_BHTD, self.key_BGSD, self.layer.call.value_BGSD.double(), terms
        )
        return float(self._counted((got_BTHD - self.layer.context_BTHD.double()).abs()).max())

    def budget(self, terms: AttentionParams) -> float:
        """What rounding does to that computation in the model's own precision."""
        value_BGSD = self.layer.call.value_BGSD.double()

        def compute(dtype: torch.dtype, piecewise: bool) -> Tensor:
            return attend(
                self.query_BHTD.to(dtype),
                self.key_BGSD.to(dtype),
                value_BGSD.to(dtype),
                terms,
                piecewise=piecewise,
            )

        return HEADROOM * noise_floor(compute, self.layer.call.query_BHTD.dtype)

    def effects(self, terms: AttentionParams) -> dict[str, float]:
        """How far the output would move without the soft-cap or the sinks: whether this input shows
        them at all.
        """
        without = {"soft-cap": replace(terms, cap=None)} if terms.cap else {}
        if terms.sinks_H is not None:
            without["sinks"] = replace(terms, sinks_H=None)
        return {name: self.apart(changed) for name, changed in without.items()}

    def _counted(self, amount_BTHD: Tensor) -> Tensor:
        return torch.where(self.real_B1T1.transpose(1, 2), amount_BTHD, 0.0)


@final
@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Queries and keys to compute from, as the layer should form them, less the `factors` that
    nobody promises.

    `handed` are those that the kernel got. `words` say how they differ; `broken` (with its `fault`,
    if one is known) where that alone decides. `query` and `key` say where they were traced to.
    """

    query_BHTD: Tensor
    key_BGSD: Tensor
    handed: tuple[Tensor, Tensor]
    query: Source | None = None
    key: Source | None = None
    factors: tuple[float, float] = (1.0, 1.0)
    words: str = ""
    broken: str = ""
    fault: str = ""

    @property
    def traced(self) -> bool:
        """Whether both come from projections that are known."""
        return self.query is not None and self.key is not None


def inputs_of(
    config: Any, model: nn.Module, layer: Attended, standing: Standing, known: Known | None
) -> Inputs:
    """From what a layer's output is to be computed: traced in one forward, formed in the same way
    on a cache.
    """
    return _on_cache(layer, standing, known) if known else _traced(config, model, layer)


def _traced(config: Any, model: nn.Module, layer: Attended) -> Inputs:
    call = layer.call
    query, key = (
        source_of(each, layer.stages, layer.tables) for each in (call.query_BHTD, call.key_BGSD)
    )
    handed = call.query_BHTD.double(), call.key_BGSD.double()
    if query is None or key is None:
        return Inputs(
            query_BHTD=handed[0], key_BGSD=handed[1], handed=handed
        )  # a factor on one side alone means nothing
    is_known = known_factor(config, model, call.module)
    promised = [
        each.factor == 1.0 or is_known(each.factor, each.turn is None) for each in (query, key)
    ]
    factors = (1.0 if promised[0] else query.factor, 1.0 if promised[1] else key.factor)
    states = [
        source.states_BHTD if source.turns > 1 else tensor / factor
        for source, tensor, factor in zip((query, key), handed, factors, strict=True)
    ]
    twice = "keys are turned twice by the rotary tables" if key.turns > 1 else ""
    return Inputs(
        query_BHTD=states[0],
        key_BGSD=states[1],
        handed=handed,
        query=_light(query),
        key=_light(key),
        factors=factors,
        broken=twice,
        fault="key-rotated-twice" if twice else "",
    )


def _light(source: Source) -> Source:
    """The same without its tensor, to be kept."""
    return replace(source, states_BHTD=source.states_BHTD[:0])


def _on_cache(layer: Attended, standing: Standing, known: Known) -> Inputs:
    call, slots = layer.call, new_slots(layer.call.key_BGSD.shape[2], standing)
    fine = ROUNDINGS * torch.finfo(call.query_BHTD.dtype).eps < COARSE
    query = (
        formed(known.query, call.query_BHTD, layer, "queries")
        if fine and known.query
        else Formed(None)
    )
    key = (
        formed(known.key, call.key_BGSD[:, :, slots], layer, "keys")
        if fine and known.key
        else Formed(None)
    )
    handed = call.query_BHTD.double() / known.factors[0], call.key_BGSD.double() / known.factors[1]
    keys = handed[1].clone()
    if key.states_BHTD is not None:
        keys[:, :, slots] = key.states_BHTD / known.factors[1]
    return Inputs(
        query_BHTD=handed[0] if query.states_BHTD is None else query.states_BHTD / known.factors[0],
        key_BGSD=keys,
        handed=handed,
        query=known.query,
        key=known.key,
        factors=known.factors,
        words=query.words or key.words,
        broken=" and ".join(
            each.words for each in (query, key) if each.words and each.states_BHTD is None
        ),
    )
