"""Holding one attention layer to its promise: its output against attention computed in float64 from what it was made of.

A layer that does not keep the promise is compared with the promise changed in one ingredient at a time (another scale, other
heads, no soft-cap, no sinks, another reach). Only an exact reproduction names a fault.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.numerics.reference import Terms, attend, budget_from, fitted_scale, floor_of, grouped, tiled
from attncheck.subject.layers import Attended, weights_of
from attncheck.subject.promises import (
    FULL,
    ReachPromise,
    ScalePromise,
    known_factor,
    promised_cap,
    promised_reach,
    promised_scales,
    sinks_of,
)
from attncheck.subject.sources import Source, source_of

READABLE = float(torch.finfo(torch.float16).min)
UNDERSTOOD = frozenset({"position_bias", "position_ids", "cache_position"})
SINKS = ("s_aux", "sinks")
NEARLY = 1e-6
"""A fault reproduces an output when what is left is this part of the difference, or within rounding."""


@final
@dataclass(frozen=True, kw_only=True)
class Verdicted:
    """What became of one layer. `apart` and `budget` are about its output; `fault` is set when one reproduces it exactly.

    `unknown` says why the layer cannot be held to anything; `reach_differs` that only another reach reproduces it.
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
    effects: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    residual: float | None = None
    words: str = ""
    unknown: str = ""
    reach_differs: bool = False
    traced: str = ""

    @property
    def holds(self) -> bool:
        """Whether the output is what the promise gives."""
        return self.apart <= self.budget


@final
@dataclass
class _Case:
    """One layer's tensors in float64, and the ways to compute its output."""

    layer: Attended
    query: Tensor
    key: Tensor
    value: Tensor
    want_BTHD: Tensor

    def apart(self, terms: Terms) -> float:
        got_BTHD = attend(self.query, self.key, self.value, terms)
        return float((got_BTHD - self.want_BTHD).abs().max())

    def budget(self, terms: Terms) -> float:
        def compute(dtype: torch.dtype) -> Tensor:
            return attend(self.query.to(dtype), self.key.to(dtype), self.value.to(dtype), terms)

        return budget_from(floor_of(compute, self.layer.call.query_BHTD.dtype))


def held_to_promise(config: Any, model: nn.Module, layer: Attended) -> Verdicted:
    """Compare one layer of a forward without a cache with its promise.

    Raises:
        Unsupported: the kernel's output has another form than (B, T, H, D).
    """
    call = layer.call
    query, key = (source_of(each, layer.stages, layer.tables) for each in (call.query_BHTD, call.key_BGSD))
    if query is None or key is None:
        query = key = None  # a factor on one side means nothing without the other
    known = known_factor(config, model, call.module)
    case = _Case(
        layer,
        _unscaled(call.query_BHTD, query, known),
        _unscaled(call.key_BGSD, key, known),
        call.value_BGSD.double(),
        layer.context_BTHD.double(),
    )
    promise = promised_reach(config, call.module, layer.index)
    options = list(_promises(config, layer, promise, traced=query is not None and key is not None))
    scale, terms = min(options, key=lambda option: case.apart(option[1]))
    return _judged(case, scale, terms, promise, config, query, key)


def _unscaled(handed: Tensor, source: Source | None, known: Callable[[float, bool], bool]) -> Tensor:
    """Queries or keys as they leave positions, with any factor taken off that nobody promises."""
    if source is None:
        return handed.double()
    if source.turns > 1:
        return source.states_BHTD
    promised = source.factor == 1.0 or known(source.factor, source.turn is None)
    return handed.double() if promised else handed.double() / source.factor


def _promises(config: Any, layer: Attended, reach: ReachPromise, traced: bool) -> Iterator[tuple[ScalePromise, Terms]]:
    """Every set of ingredients that the layer may be held to."""
    call = layer.call
    heads, width = call.query_BHTD.shape[1], call.query_BHTD.shape[-1]
    scales = promised_scales(config, call.module, width, layer.index)
    handed = call.options.get("scaling")
    if not traced and isinstance(handed, float):
        scales = [*scales, ScalePromise(handed, "the kernel's argument (queries or keys were not traced to a projection)")]
    cap = promised_cap(config) or ("", call.options.get("softcap"))
    sinks_H = sinks_of(call.module, heads)
    if sinks_H is None:
        sinks_H = next((call.options[name] for name in SINKS if _is_sink(call.options.get(name), heads)), None)
    new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
    device = call.query_BHTD.device
    masks = [each.allowed_TS(new, total, device) for each in reach.reaches]
    masks = masks or [_readable(layer) & FULL.allowed_TS(new, total, device)]
    for scale in scales:
        for allowed in masks:
            yield (
                scale,
                Terms(
                    scale=scale.value,
                    allowed=allowed,
                    heads=grouped(heads, call.key_BGSD.shape[1]),
                    cap=cap[1] or None,
                    sinks_H=None if sinks_H is None else sinks_H.detach().double().flatten(),
                    bias=_bias(layer),
                ),
            )


def _is_sink(value: Any, heads: int) -> bool:
    return isinstance(value, Tensor) and value.numel() == heads


def _readable(layer: Attended) -> Tensor:
    """What the kernel really reads, (B, H, T, S)."""
    return weights_of(layer.call, blank=True) > 0


def _bias(layer: Attended) -> Tensor | None:
    """What is added to the scores besides the mask: finite numbers in a float mask, or a position bias."""
    mask, total = layer.call.mask, layer.call.key_BGSD.shape[2]
    found = layer.call.options.get("position_bias")
    bias = found.double() if isinstance(found, Tensor) else None
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.is_floating_point():
        added = torch.where(mask > READABLE, mask, 0.0)[..., :total].double()
        if bool((added != 0).any()):
            bias = added if bias is None else bias + added
    return bias


def _judged(
    case: _Case,
    scale: ScalePromise,
    terms: Terms,
    reach: ReachPromise,
    config: Any,
    query: Source | None,
    key: Source | None,
) -> Verdicted:
    layer, call = case.layer, case.layer.call
    apart, budget = case.apart(terms), case.budget(terms)
    weights_BHTS = weights_of(call).double()
    fitted, heads = fitted_scale(weights_BHTS, case.query, case.key, terms)
    common: dict[str, Any] = {
        "name": layer.name,
        "index": layer.index,
        "apart": apart,
        "budget": budget,
        "size": float(case.want_BTHD.abs().max()),
        "positions": call.query_BHTD.shape[0] * call.query_BHTD.shape[2],
        "fitted": fitted,
        "promised": scale,
        "heads": heads,
        "kv_heads": call.key_BGSD.shape[1],
        "traced": "" if query and key else "queries or keys were not traced to a projection",
    }
    if key is not None and key.turns > 1:
        words = "keys are turned twice by the rotary tables"
        return Verdicted(**{**common, "apart": max(apart, 2 * budget)}, fault="key-rotated-twice", residual=0.0, words=words)
    if apart <= budget:
        return Verdicted(**common, effects=_effects(case, terms))
    for fault, changed, words in _hypotheses(case, terms, fitted, heads):
        left = case.apart(changed)
        if left <= max(budget, NEARLY * apart):
            return Verdicted(**common, fault=fault, residual=left, words=words, reach_differs=fault == "reach")
    return Verdicted(**common, unknown=_unknown(layer, reach), words="no known fault reproduces it")


def _effects(case: _Case, terms: Terms) -> dict[str, float]:
    """How far the output would move without the soft-cap or the sinks: whether this input shows them at all."""
    without = {"soft-cap": terms.but(cap=None) if terms.cap else None, "sinks": terms.but(sinks_H=None)}
    if terms.sinks_H is None:
        del without["sinks"]
    return {name: case.apart(changed) for name, changed in without.items() if changed is not None}


def _hypotheses(case: _Case, terms: Terms, fitted: float, heads: tuple[int, ...]) -> Iterator[tuple[str, Terms, str]]:
    """(fault, ingredients, words): the promise with one ingredient changed, then with the observed reach as well."""
    readable = _readable(case.layer)
    for allowed, fault in ((terms.allowed, ""), (readable, "reach")):
        here = terms.but(allowed=allowed)
        if fault:
            yield fault, here, "it reads other keys than promised"
        if here.cap:
            yield "softcap-missing", here.but(cap=None), f"the soft-cap of {here.cap:g} is configured but absent"
        if here.sinks_H is not None:
            yield "sink-missing", here.but(sinks_H=None), "the learned sinks take no part in the softmax"
        yield from _heads(case, here, heads)
        yield from _scales(case, here, fitted)


def _heads(case: _Case, terms: Terms, heads: tuple[int, ...]) -> Iterator[tuple[str, Terms, str]]:
    count, kv_heads = len(terms.heads), case.key.shape[1]
    order = tiled(count, kv_heads)
    if order != terms.heads:
        yield "kv-groups-tiled", terms.but(heads=order), f"query heads read KV heads {_listed(order)}"
    if heads not in (terms.heads, order):
        yield "kv-groups-tiled", terms.but(heads=heads), f"query heads read KV heads {_listed(heads)}"


def _scales(case: _Case, terms: Terms, fitted: float) -> Iterator[tuple[str, Terms, str]]:
    """Scales that faults produce: applied twice, not at all, by half or double, by what fits best."""
    width = case.query.shape[-1]
    usual = [terms.scale * terms.scale, 1.0, 0.5 * terms.scale, 2 * terms.scale, 1 / width, width**-0.5]
    near = [value for value in usual if abs(value / fitted - 1) < NEARLY] if fitted > 0 else []
    for value in near or (usual if terms.cap else [fitted]):
        if value > 0:
            words = f"the scores are scaled by {value:.6g} where {terms.scale:.6g} is promised"
            yield "softmax-scale", terms.but(scale=value), words


def _listed(heads: tuple[int, ...]) -> str:
    return " ".join(map(str, heads))


def _unknown(layer: Attended, reach: ReachPromise) -> str:
    """Why a difference that nothing reproduces proves nothing, or an empty text where every ingredient is known."""
    call = layer.call
    if not reach.reaches:
        return reach.reason
    heads = call.query_BHTD.shape[1]
    tensors = [
        name
        for name, value in call.options.items()
        if isinstance(value, Tensor) and name not in UNDERSTOOD and not (name in SINKS and _is_sink(value, heads))
    ]
    if tensors:
        return f"the kernel takes `{tensors[0]}`, which is not part of standard attention"
    if call.mask is not None and not (isinstance(call.mask, Tensor) and call.mask.ndim == 4):
        return "the attention mask is in a form of its own"
    return ""
