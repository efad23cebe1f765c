"""The queries and keys that one layer should compare, traced to its projections, and how far the
layer's output is from attention computed on them.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.reference import AttentionParams, attend, noise_floor
from attncheck.judge.config_spec import factor_check
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.layer_spec import CallPosition, PrefillState
from attncheck.judge.projections import (
    COARSE,
    ProjectionSource,
    blocks_of,
    resolution,
    rotated_or_none,
    source_of,
)
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import max_abs, max_abs_diff


@final
@dataclass(frozen=True)
class ComputedLayer:
    """One layer with the queries and keys, in float64, that its output is computed from."""

    layer: LayerCall
    query_BHTD: Tensor
    key_BGSD: Tensor
    position: CallPosition

    @property
    def real_B1T1(self) -> Tensor:
        """Which queries are tokens; padding does not count."""
        return self.position.real_BT(self.query_BHTD.device)[:, None, :, None]

    @property
    def positions(self) -> int:
        """How many queries count."""
        rows, _, length, _ = self.query_BHTD.shape
        return int(self.real_B1T1[:, 0, :, 0].expand(rows, length).sum())

    @property
    def size(self) -> float:
        """The largest output."""
        return max_abs(self._counted(self.layer.context_BTHD.double()))

    def max_abs_diff(self, params: AttentionParams) -> float:
        """The largest difference between the layer's output and attention with these parameters."""
        value_BGSD = self.layer.call.value_BGSD.double()
        expected_BTHD = attend(self.query_BHTD, self.key_BGSD, value_BGSD, params)
        return max_abs(self._counted(expected_BTHD - self.layer.context_BTHD.double()))

    def budget(self, params: AttentionParams) -> float:
        """What rounding does to that computation in the model's own precision."""
        value_BGSD = self.layer.call.value_BGSD
        states = (self.query_BHTD, self.key_BGSD, value_BGSD.double())
        passed = self.layer.call.query_BHTD, value_BGSD, self.layer.context_BTHD
        # queries may be wider than the values that their weights are rounded for
        coarsest = max((each.dtype for each in passed), key=lambda each: torch.finfo(each).eps)

        def compute(dtype: torch.dtype, piecewise: bool) -> Tensor:
            query, key, value = (each.to(dtype) for each in states)
            return attend(query, key, value, params, piecewise=piecewise)

        return HEADROOM * noise_floor(compute, coarsest)

    def effects(self, params: AttentionParams) -> dict[str, float]:
        """How far the output would move without the soft-cap or the sinks, that is, whether this
        input would show their absence.
        """
        without = {"soft-cap": replace(params, cap=None)} if params.cap else {}
        if params.sinks_H is not None:
            without["sinks"] = replace(params, sinks_H=None)
        return {name: self.max_abs_diff(changed) for name, changed in without.items()}

    def _counted(self, values_BTHD: Tensor) -> Tensor:
        return torch.where(self.real_B1T1.transpose(1, 2), values_BTHD, 0.0)


@final
@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Queries and keys as the layer should form them, less the `factors` that nothing states.

    `passed` are those that the kernel got, and `difference` says how they differ. `broken` (with
    its `fault`, if one is known) says what is wrong before any output is computed. `query` and
    `key` are where they were traced to.
    """

    query_BHTD: Tensor
    key_BGSD: Tensor
    passed: tuple[Tensor, Tensor]
    query: ProjectionSource | None = None
    key: ProjectionSource | None = None
    factors: tuple[float, float] = (1.0, 1.0)
    difference: str = ""
    broken: str = ""
    fault: str = ""

    @property
    def traced(self) -> bool:
        """Whether both come from projections that are known."""
        return self.query is not None and self.key is not None


def inputs_of(
    config: Any,
    model: nn.Module,
    layer: LayerCall,
    position: CallPosition,
    prefill: PrefillState | None,
) -> LayerInputs:
    """What a layer's output is to be computed from: traced in one forward, and formed in the same
    way by calls on a cache.
    """
    return _on_cache(layer, position, prefill) if prefill else _traced(config, model, layer)


def _traced(config: Any, model: nn.Module, layer: LayerCall) -> LayerInputs:
    call = layer.call
    states = (call.query_BHTD, call.key_BGSD)
    query, key = (source_of(each, layer.stages, layer.tables) for each in states)
    passed = call.query_BHTD.double(), call.key_BGSD.double()
    if query is None or key is None:
        # a factor on one side alone says nothing about the scores
        return LayerInputs(query_BHTD=passed[0], key_BGSD=passed[1], passed=passed)
    is_known = factor_check(config, model, call.module, resolution(call.query_BHTD.dtype))
    unexplained = [
        1.0 if each.factor == 1.0 or is_known(each.factor, each.pairing is None) else each.factor
        for each in (query, key)
    ]
    query_BHTD, key_BGSD = (
        # the kernel's own states otherwise, for their bits: the traced ones carry rounding
        source.states_BHTD if source.rotations > 1 else tensor / factor
        for source, tensor, factor in zip((query, key), passed, unexplained, strict=True)
    )
    twice = "the rotary tables rotate keys twice" if key.rotations > 1 else ""
    return LayerInputs(
        query_BHTD=query_BHTD,
        key_BGSD=key_BGSD,
        passed=passed,
        query=_without_states(query),
        key=_without_states(key),
        factors=(unexplained[0], unexplained[1]),
        broken=twice,
        fault="key-rotated-twice" if twice else "",
    )


def _without_states(source: ProjectionSource) -> ProjectionSource:
    """The same without its tensor, to be kept."""
    return replace(source, states_BHTD=source.states_BHTD.new_zeros(0))


def _on_cache(layer: LayerCall, position: CallPosition, prefill: PrefillState) -> LayerInputs:
    call, slots = layer.call, position.new_slots(layer.call.key_BGSD.shape[2])
    query = key = ExpectedStates(None)
    if resolution(call.query_BHTD.dtype) < COARSE:
        query = expected_states(prefill.query, call.query_BHTD, layer, "queries")
        key = expected_states(prefill.key, call.key_BGSD[:, :, slots], layer, "keys")
    for_query, for_key = prefill.factors
    passed = call.query_BHTD.double() / for_query, call.key_BGSD.double() / for_key
    key_BGSD = passed[1].clone()
    if key.states_BHTD is not None:
        key_BGSD[:, :, slots] = key.states_BHTD / for_key
    # where the right states are known, the output decides; elsewhere the difference itself does
    unknown = [each.difference for each in (query, key) if each.states_BHTD is None]
    return LayerInputs(
        query_BHTD=passed[0] if query.states_BHTD is None else query.states_BHTD / for_query,
        key_BGSD=key_BGSD,
        passed=passed,
        query=prefill.query,
        key=prefill.key,
        factors=prefill.factors,
        difference=query.difference or key.difference,
        broken=" and ".join(filter(None, unknown)),
    )


@final
@dataclass(frozen=True)
class ExpectedStates:
    """states_BHTD as one forward would form them, None where that is not known; `difference` says
    how the kernel's differ.
    """

    states_BHTD: Tensor | None
    difference: str = ""


def expected_states(
    source: ProjectionSource | None, passed_BHTD: Tensor, layer: LayerCall, what: str
) -> ExpectedStates:
    """Compare the new queries or keys of a call with what one forward would make of the same
    projection: normed, scaled and rotated alike.
    """
    if source is None:
        return ExpectedStates(None)
    passed = passed_BHTD.double()
    slack = resolution(passed_BHTD.dtype) * max_abs(passed)
    states = before_rotation(source, layer.stages.get(source.stage), passed)
    if states is None:
        return ExpectedStates(None, _other_stage(source, passed, layer, slack, what))
    if source.pairing is None:
        return ExpectedStates(None, _other_lengths(states, passed, slack, what, source.stage))
    wanted: Tensor | None = states
    if source.pairing != "none":
        rotated = rotated_or_none(states / source.factor, layer.tables, source.pairing)
        wanted = None if rotated is None else rotated * source.factor
    if wanted is None or max_abs_diff(wanted, passed) <= slack:
        return ExpectedStates(wanted)
    if max_abs_diff(states, passed) <= slack:
        words = f"the rotary tables do not rotate {what}, unlike in one forward"
    else:
        words = f"{what} are not what `{source.stage}` puts out, unlike in one forward"
    return ExpectedStates(wanted, words)


def before_rotation(
    source: ProjectionSource, stage: Tensor | None, passed_BHTD: Tensor
) -> Tensor | None:
    """What a stage gives for each head, with the factor on it and before any rotation."""
    if stage is None:
        return None
    batch, _, length, width = passed_BHTD.shape
    readings = blocks_of(stage, batch, length, width)
    missing = source.reading >= len(readings)
    if missing or readings[source.reading].shape[1] <= max(source.blocks):
        return None
    return readings[source.reading].double()[:, list(source.blocks)] * source.factor


def _other_lengths(states: Tensor, passed: Tensor, slack: float, what: str, stage: str) -> str:
    same = max_abs_diff(states.norm(dim=-1), passed.norm(dim=-1)) <= slack
    return "" if same else f"{what} have other lengths than `{stage}` gives them in one forward"


def _other_stage(
    source: ProjectionSource, passed: Tensor, layer: LayerCall, slack: float, what: str
) -> str:
    """The stage that they come from instead, where the lengths of all heads say so."""
    for name, stage in layer.stages.items():
        states = before_rotation(source, stage, passed)
        if states is not None and not _other_lengths(states, passed, slack, what, name):
            return f"{what} come from `{name}`, in one forward from `{source.stage}`"
    return ""
