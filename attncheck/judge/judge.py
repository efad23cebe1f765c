"""Holding one attention layer to its promise: its output against attention computed in float64 from
what it was made of.

A layer that does not keep the promise is compared with the promise changed in one ingredient at a
time (another scale, other heads, no soft-cap, no sinks, another reach). Only an exact reproduction
names a fault.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import weights_of
from attncheck.attention.reference import AttentionParams, fitted_scale
from attncheck.core.errors import Unsupported
from attncheck.judge.call_position import Standing
from attncheck.judge.changed import changes_of
from attncheck.judge.computed import Computed, Inputs, inputs_of
from attncheck.judge.config_spec import ReachPromise, ScalePromise, promised_reach
from attncheck.judge.layer_spec import (
    SINKS,
    UNTRACED,
    Context,
    Known,
    Option,
    form_of,
    is_sink,
    options_of,
    readable_of,
)
from attncheck.judge.layers import Attended

UNDERSTOOD = frozenset({"position_bias", "position_ids", "cache_position"})
NEARLY = 1e-6
"""A fault reproduces an output when what is left is this part of the difference, or within
rounding.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Verdicted:
    """What became of one layer. `apart` and `budget` are about its output; `fault` is set when one
    reproduces it exactly.

    `fitted` and `heads` are read off the kernel's weights in one forward, and on a cache where a
    layer differs. `unknown` says why the layer cannot be held to anything; `reach_differs` that
    only another reach reproduces it; `unstated` why its scale is taken from itself; `broken` what
    is wrong before any output is computed; `known` what its later calls are held to.
    """

    name: str
    index: int | None
    apart: float
    budget: float
    size: float
    positions: int
    fitted: float
    promised: ScalePromise
    heads: tuple[int, ...]
    kv_heads: int
    width: int
    effects: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    residual: float | None = None
    words: str = ""
    unknown: str = ""
    reach_differs: bool = False
    traced: str = ""
    unstated: str = ""
    broken: str = ""
    known: Known | None = None

    @property
    def holds(self) -> bool:
        """Whether the output is what the promise gives."""
        return self.apart <= self.budget and not self.broken


def held_to_promise(
    config: Any,
    model: nn.Module,
    layer: Attended,
    standing: Standing | None = None,
    known: Known | None = None,
    both_ways: bool = False,
) -> Verdicted:
    """Compare one layer of a forward with its promise; a call on a cache also with what one forward
    showed (`known`).

    Raises:
        Unsupported: the kernel's output or the heads that it is handed have a form that cannot be
        judged.
    """
    if known is not None and form_of(layer) != known.form:
        raise Unsupported("its kernel is handed other heads than in one forward")
    standing = standing or Standing(new=layer.call.query_BHTD.shape[2])
    inputs = inputs_of(config, model, layer, standing, known)
    context = Context(
        config=config,
        standing=standing,
        promise=promised_reach(config, layer.call.module, layer.index),
        known=known,
        traced=inputs.traced,
        factor=inputs.factors[0] * inputs.factors[1],
        both_ways=both_ways,
    )
    case = Computed(layer, inputs.query_BHTD, inputs.key_BGSD, standing)
    return _judged(case, _nearest(case, list(options_of(layer, context))), context, inputs)


def _nearest(case: Computed, options: list[Option]) -> Option:
    """The ingredients that come nearest: stated ones where they hold, else those that the layer was
    seen to use.
    """
    stated = [option for option in options if not option.unstated]
    nearest = min(stated or options, key=lambda option: case.apart(option.terms))
    if len(stated) in (0, len(options)) or case.apart(nearest.terms) <= case.budget(nearest.terms):
        return nearest
    return min(
        (option for option in options if option.unstated),
        key=lambda option: case.apart(option.terms),
    )


def _judged(case: Computed, option: Option, context: Context, inputs: Inputs) -> Verdicted:
    layer, terms = case.layer, option.terms
    apart, budget = (
        case.apart(terms),
        max(case.budget(terms), context.known.budget if context.known else 0.0),
    )
    fitted, heads = (
        (terms.scale, terms.heads) if context.known and apart <= budget else _fitted(case, terms)
    )
    verdict = Verdicted(
        name=layer.name,
        index=layer.index,
        apart=apart,
        budget=budget,
        size=case.size,
        positions=case.positions,
        fitted=fitted,
        promised=option.scale,
        heads=heads,
        kv_heads=layer.call.key_BGSD.shape[1],
        width=layer.call.query_BHTD.shape[-1],
        traced="" if inputs.traced else UNTRACED,
        unstated=option.unstated,
    )
    if inputs.fault:
        return replace(
            verdict,
            apart=max(apart, 2 * budget),
            fault=inputs.fault,
            residual=0.0,
            words=inputs.broken,
        )
    if inputs.broken or option.lost:
        lost = f"its cache has dropped keys of what it reads in one forward, {option.reach}"
        return replace(verdict, broken=inputs.broken or lost)
    if apart <= budget:
        return replace(
            verdict, effects=case.effects(terms), known=_learned(layer, option, inputs, budget)
        )
    return _explained(verdict, case, option, context, inputs)


def _fitted(case: Computed, terms: AttentionParams) -> tuple[float, tuple[int, ...]]:
    """(scale, KV head of each query head) that explain the kernel's true weights best."""
    weights_BHTS = torch.where(case.real_B1T1, weights_of(case.layer.call).double(), 0.0)
    return fitted_scale(weights_BHTS, case.query_BHTD, case.key_BGSD, terms)


def _explained(
    verdict: Verdicted, case: Computed, option: Option, context: Context, inputs: Inputs
) -> Verdicted:
    """The first change of one ingredient that reproduces the output, or why none need do so."""
    enough = max(verdict.budget, NEARLY * verdict.apart)
    if inputs.words:
        handed = replace(case, query_BHTD=inputs.handed[0], key_BGSD=inputs.handed[1])
        if handed.apart(option.terms) <= enough:
            return replace(verdict, residual=handed.apart(option.terms), words=inputs.words)
    for change in changes_of(
        case, option, verdict.fitted, verdict.heads, lambda: readable_of(case.layer)
    ):
        left = case.apart(change.terms)
        if left <= enough:
            found = replace(verdict, fault=change.fault, residual=left, words=change.words)
            return replace(found, reach_differs=change.fault == "reach")
    words = inputs.words or "no known fault reproduces it"
    return replace(verdict, unknown=_unknown(case.layer, context.promise), words=words)


def _learned(layer: Attended, option: Option, inputs: Inputs, budget: float) -> Known:
    terms = option.terms
    return Known(
        scale=option.scale,
        reach=option.reach,
        cap=terms.cap,
        sinks_H=terms.sinks_H,
        slopes_H=option.slopes_H,
        unstated=option.unstated,
        query=inputs.query,
        key=inputs.key,
        factors=inputs.factors,
        form=form_of(layer),
        budget=budget,
    )


def _unknown(layer: Attended, reach: ReachPromise) -> str:
    """Why a difference that nothing reproduces proves nothing, or an empty text where every
    ingredient is known.
    """
    call = layer.call
    if call.caveat:
        return call.caveat
    if not reach.reaches:
        return reach.reason
    heads = call.query_BHTD.shape[1]
    tensors = [
        name
        for name, value in call.options.items()
        if isinstance(value, Tensor)
        and name not in UNDERSTOOD
        and not (name in SINKS and is_sink(value, heads))
    ]
    if tensors:
        return f"the kernel takes `{tensors[0]}`, which is not part of standard attention"
    if call.mask is not None and not (isinstance(call.mask, Tensor) and call.mask.ndim == 4):
        return "the attention mask is in a form of its own"
    return ""
