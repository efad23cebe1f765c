"""Judge one attention layer: compare its output with attention computed in float64 from what the
config states.

A layer that differs is compared with variants that have one parameter changed (another scale, other
heads, no soft-cap, no sinks, other keys). Only an exact reproduction names a fault.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import weights_of
from attncheck.attention.reference import AttentionParams, fitted_scale, tiled
from attncheck.core.errors import Unsupported
from attncheck.judge.attention_span import other_keys
from attncheck.judge.config_spec import ScaleSpec, SpanSpec, span_spec
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.layer_inputs import ComputedLayer, LayerInputs, inputs_of
from attncheck.judge.layer_spec import (
    SINKS,
    UNTRACED,
    AttentionOption,
    CallPosition,
    JudgeContext,
    PrefillState,
    is_sink,
    options_of,
    readable_keys,
    shape_of,
    unstated_softcap,
)
from attncheck.judge.slot_order import require_token_order

UNDERSTOOD = frozenset({"position_bias", "position_ids", "cache_position"})
NEARLY = 1e-6
"""A variant reproduces an output when what is left is this part of the difference, or within
rounding; a usual scale is meant where the fitted one is this near to it.
"""


@final
@dataclass(frozen=True, kw_only=True)
class LayerResult:
    """How one layer compares with what its config states.

    `max_abs_diff`, `budget` and `size` are about its output; `residual` is what a named `fault`
    leaves of the difference, and `difference` describes it. `fitted` and `heads` are read off the
    kernel's weights: in one forward, and on a cache where the layer differs. `unknown` says why the
    layer cannot be judged, `unstated` why its scale is only the observed one, `own_cap` a soft-cap
    that nothing states, `biased` whether it adds a bias to the scores, `broken` what is wrong
    before any output is computed. `other_keys` means that only other keys reproduce the output.
    Later calls on a cache are checked against `prefill`.
    """

    name: str
    index: int | None
    max_abs_diff: float
    budget: float
    size: float
    positions: int
    fitted: float
    scale: ScaleSpec
    heads: tuple[int, ...]
    kv_heads: int
    width: int
    effects: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    residual: float | None = None
    difference: str = ""
    unknown: str = ""
    other_keys: bool = False
    untraced: str = ""
    unstated: str = ""
    own_cap: float = 0.0
    biased: bool = False
    broken: str = ""
    prefill: PrefillState | None = None

    @property
    def passed(self) -> bool:
        """Whether the output is what the config states."""
        return self.max_abs_diff <= self.budget and not self.broken


def judge_layer(
    config: Any,
    model: nn.Module,
    layer: LayerCall,
    position: CallPosition | None = None,
    prefill: PrefillState | None = None,
    bidirectional: bool = False,
) -> LayerResult:
    """Compare one layer with its config; a call on a cache also with one forward (`prefill`).

    Raises:
        Unsupported: the kernel's output or its heads have a form that cannot be judged.
    """
    position = position or CallPosition(new=layer.call.query_BHTD.shape[2])
    if prefill is not None:
        if shape_of(layer) != prefill.shape:
            raise Unsupported("its head counts differ from those in the uncached forward")
        require_token_order(config, layer, position, prefill)
    inputs = inputs_of(config, model, layer, position, prefill)
    context = JudgeContext(
        config=config,
        position=position,
        span=span_spec(config, layer.call.module, layer.index),
        prefill=prefill,
        traced=inputs.traced,
        factor=inputs.factors[0] * inputs.factors[1],
        bidirectional=bidirectional,
    )
    case = ComputedLayer(layer, inputs.query_BHTD, inputs.key_BGSD, position)
    return _judged(case, _nearest(case, list(options_of(layer, context))), context, inputs)


def _nearest(case: ComputedLayer, options: list[AttentionOption]) -> AttentionOption:
    """The option that comes nearest: a stated one where it passes, otherwise one that the layer was
    observed to use.
    """

    def difference(option: AttentionOption) -> float:
        return case.max_abs_diff(option.params)

    stated = [option for option in options if not option.unstated]
    nearest = min(stated or options, key=difference)
    # an observed scale always fits better, so it may only stand in where no stated one passes
    if len(stated) in (0, len(options)) or difference(nearest) <= case.budget(nearest.params):
        return nearest
    return min((option for option in options if option.unstated), key=difference)


def _judged(
    case: ComputedLayer, option: AttentionOption, context: JudgeContext, inputs: LayerInputs
) -> LayerResult:
    layer, params, prefill = case.layer, option.params, context.prefill
    difference = case.max_abs_diff(params)
    # a single query of a step rounds by chance less than its layer does as a rule
    budget = max(case.budget(params), prefill.budget if prefill else 0.0)
    within = difference <= budget
    fitted, heads = (params.scale, params.heads) if prefill and within else _fitted(case, params)
    result = LayerResult(
        name=layer.name,
        index=layer.index,
        max_abs_diff=difference,
        budget=budget,
        size=case.size,
        positions=case.positions,
        fitted=fitted,
        scale=option.scale,
        heads=heads,
        kv_heads=layer.call.key_BGSD.shape[1],
        width=layer.call.query_BHTD.shape[-1],
        untraced="" if inputs.traced else UNTRACED,
        unstated=option.unstated,
        own_cap=unstated_softcap(layer, context),
        biased=option.own_bias is not None,
    )
    if inputs.fault:
        result = replace(result, max_abs_diff=max(difference, 2 * budget), residual=0.0)
        return replace(result, fault=inputs.fault, difference=inputs.broken)
    if inputs.broken or option.dropped:
        dropped = f"its cache has dropped keys that it reads in one forward: {option.span}"
        return replace(result, broken=inputs.broken or dropped)
    if within:
        state = _prefill_state(layer, option, inputs, budget)
        return replace(result, effects=case.effects(params), prefill=state)
    return _explained(result, case, option, context, inputs)


def _fitted(case: ComputedLayer, params: AttentionParams) -> tuple[float, tuple[int, ...]]:
    """(scale, KV head of each query head) that explain the kernel's true weights best."""
    weights_BHTS = torch.where(case.real_B1T1, weights_of(case.layer.call).double(), 0.0)
    return fitted_scale(weights_BHTS, case.query_BHTD, case.key_BGSD, params)


def _explained(
    result: LayerResult,
    case: ComputedLayer,
    option: AttentionOption,
    context: JudgeContext,
    inputs: LayerInputs,
) -> LayerResult:
    """The first variant that reproduces the output, or the reason why none needs to."""
    enough = max(result.budget, NEARLY * result.max_abs_diff)
    if inputs.difference:
        own = replace(case, query_BHTD=inputs.passed[0], key_BGSD=inputs.passed[1])
        left = own.max_abs_diff(option.params)
        if left <= enough:
            return replace(result, residual=left, difference=inputs.difference)
    for variant in _variants(case, option, result):
        left = case.max_abs_diff(variant.params)
        if left <= enough:
            found = replace(result, fault=variant.fault, residual=left)
            other_keys = variant.fault == "reach"
            return replace(found, difference=variant.difference, other_keys=other_keys)
    difference = inputs.difference or "no known fault reproduces it"
    return replace(result, unknown=_unknown(case.layer, context.span), difference=difference)


@final
@dataclass(frozen=True)
class _Variant:
    """Other parameters, the name of the fault that they are (empty where it has none), and what
    differs.
    """

    fault: str
    params: AttentionParams
    difference: str


def _variants(
    case: ComputedLayer, option: AttentionOption, result: LayerResult
) -> Iterator[_Variant]:
    """One parameter changed; then the same with the keys that the kernel was observed to read."""
    params = option.params
    if params.bias is not option.own_bias:
        difference = "its linear biases have other slopes than expected"
        yield _Variant("", replace(params, bias=option.own_bias), difference)
    yield from _changed(case, params, result)
    # last, since a wrong mask may come with another fault that one change alone cannot show
    observed = replace(params, allowed=readable_keys(case.layer))
    yield _Variant("reach", observed, other_keys(params.allowed, observed.allowed))
    yield from _changed(case, observed, result)


def _changed(
    case: ComputedLayer, params: AttentionParams, result: LayerResult
) -> Iterator[_Variant]:
    if params.cap:
        difference = f"the soft-cap of {params.cap:g} is configured but absent"
        yield _Variant("softcap-missing", replace(params, cap=None), difference)
    seen = case.layer.call.options.get("softcap")
    if seen and params.cap and not math.isclose(seen, params.cap, rel_tol=NEARLY):
        difference = f"the scores are capped at {seen:.6g} instead of {params.cap:g}"
        yield _Variant("", replace(params, cap=seen), difference)
    if params.sinks_H is not None:
        difference = "the learned sinks take no part in the softmax"
        yield _Variant("sink-missing", replace(params, sinks_H=None), difference)
    for heads in dict.fromkeys((tiled(len(params.heads), case.key_BGSD.shape[1]), result.heads)):
        if heads != params.heads:
            difference = f"query heads read KV heads {' '.join(map(str, heads))}"
            yield _Variant("kv-groups-tiled", replace(params, heads=heads), difference)
    for scale in _usual_scales(case, params, result.fitted):
        difference = f"the scores are scaled by {scale:.6g} instead of {params.scale:.6g}"
        yield _Variant("softmax-scale", replace(params, scale=scale), difference)


def _usual_scales(case: ComputedLayer, params: AttentionParams, fitted: float) -> list[float]:
    """Scales that faults produce: applied twice, not at all, by half or double; or the fitted one.

    A soft-cap hides the scale from the fit, so that all of them are tried.
    """
    width, scale = case.query_BHTD.shape[-1], params.scale
    usual = [scale * scale, 1.0, 0.5 * scale, 2 * scale, 1 / width, width**-0.5]
    near = [value for value in usual if abs(value / fitted - 1) < NEARLY] if fitted > 0 else []
    return [value for value in near or (usual if params.cap else [fitted]) if value > 0]


def _prefill_state(
    layer: LayerCall, option: AttentionOption, inputs: LayerInputs, budget: float
) -> PrefillState:
    # without what is as large as the scores, since the states of all layers are kept
    params = replace(option.params, allowed=torch.ones(0, dtype=torch.bool), bias=None)
    return PrefillState(
        option=replace(option, params=params, own_bias=None),
        query=inputs.query,
        key=inputs.key,
        factors=inputs.factors,
        shape=shape_of(layer),
        budget=budget,
    )


def _unknown(layer: LayerCall, span: SpanSpec) -> str:
    """Why a difference that no variant reproduces proves nothing; empty where every parameter is
    known.
    """
    call = layer.call
    if call.caveat:
        return call.caveat
    if not span.spans:
        return span.reason
    heads = call.query_BHTD.shape[1]
    for name, value in call.options.items():
        known = name in UNDERSTOOD or (name in SINKS and is_sink(value, heads))
        if isinstance(value, Tensor) and not known:
            return f"the kernel takes `{name}`, which is not part of standard attention"
    if call.mask is not None and not (isinstance(call.mask, Tensor) and call.mask.ndim == 4):
        return "the attention mask is not a 4D tensor"
    return ""
