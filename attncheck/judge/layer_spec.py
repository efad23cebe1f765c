"""What one layer is held to: every set of ingredients that its config and what it says itself
allow.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.alibi import corrected_slopes, expected_slopes, slopes_of
from attncheck.attention.call import weights_of
from attncheck.attention.masks import bias_in
from attncheck.attention.reference import AttentionParams, grouped
from attncheck.judge.call_position import Standing
from attncheck.judge.config_spec import (
    FULL,
    SAME,
    Reach,
    ReachPromise,
    ScalePromise,
    promised_cap,
    promised_scales,
    sinks_of,
)
from attncheck.judge.layers import Attended
from attncheck.judge.projections import Source
from attncheck.numerics.divergence import beyond

SINKS = ("s_aux", "sinks")
UNTRACED = "queries or keys were not traced to a projection"


@final
@dataclass(frozen=True, kw_only=True)
class Option:
    """One set of ingredients. `handed_bias` is what the layer really adds, `slopes_H` how steeply,
    where that is linear.

    `unstated` says why the scale is only what the layer was seen to do; `lost` that the cache has
    dropped keys of the reach.
    """

    scale: ScalePromise
    terms: AttentionParams
    reach: Reach | None = None
    handed_bias: Tensor | None = None
    slopes_H: Tensor | None = None
    unstated: str = ""
    lost: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Known:
    """What one forward has shown of a layer, which its calls on a cache are held to. The factors
    are nobody's promise.

    `budget` is its rounding there: one query alone is too small a sample.
    """

    scale: ScalePromise
    reach: Reach | None
    cap: float | None
    sinks_H: Tensor | None
    slopes_H: Tensor | None
    unstated: str
    query: Source | None
    key: Source | None
    factors: tuple[float, float]
    form: tuple[int, int, int]
    budget: float


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known beforehand: the config, where the call stands, what one forward has shown,
    whether queries are traced.

    `factor` is what was taken off queries and keys together; `both_ways` says that nothing promises
    that the future is hidden.
    """

    config: Any
    standing: Standing
    promise: ReachPromise
    known: Known | None = None
    traced: bool = False
    factor: float = 1.0
    both_ways: bool = False


def form_of(layer: Attended) -> tuple[int, int, int]:
    """Query heads, KV heads and head width of a call."""
    call = layer.call
    return call.query_BHTD.shape[1], call.key_BGSD.shape[1], call.query_BHTD.shape[-1]


def options_of(layer: Attended, context: Context) -> Iterator[Option]:
    """Every set of ingredients that the layer may be held to."""
    known, call = context.known, layer.call
    heads, kv_heads, _ = form_of(layer)
    cap = (
        known.cap
        if known
        else (promised_cap(context.config) or ("", call.options.get("softcap")))[1]
    )
    sinks_H = known.sinks_H if known else _sinks(layer)
    observed = bias_of(layer)
    for scale, unstated in _scales(layer, context):
        for reach, allowed, lost in _masks(layer, context):
            bias, slopes_H = _held_bias(layer, context, observed, allowed, scale.value)
            terms = AttentionParams(
                scale=scale.value,
                allowed=allowed,
                heads=grouped(heads, kv_heads),
                cap=cap or None,
                bias=bias,
            )
            yield Option(
                scale=scale,
                terms=replace(terms, sinks_H=sinks_H),
                reach=reach,
                handed_bias=observed,
                slopes_H=slopes_H,
                unstated=unstated,
                lost=lost,
            )


def _scales(layer: Attended, context: Context) -> Iterator[tuple[ScalePromise, str]]:
    """The scales that are stated first, then what the layer was seen to do, where nothing states
    any.
    """
    call = layer.call
    if context.known:
        yield context.known.scale, context.known.unstated
        return
    stated = promised_scales(context.config, call.module, call.query_BHTD.shape[-1], layer.index)
    yield from ((scale, "") for scale in stated)
    handed = call.options.get("scaling")
    if not isinstance(handed, float):
        return
    if call.inline and context.traced:
        if len(stated) == 1 and abs(handed * context.factor - 1) < SAME:
            yield (
                ScalePromise(1.0, "the scores themselves"),
                "nothing states a scale, and the scores are not scaled",
            )
    elif not context.traced:
        source = "the scores themselves" if call.inline else "the kernel's argument"
        yield ScalePromise(handed, f"{source} ({UNTRACED})"), UNTRACED if call.inline else ""


def _masks(layer: Attended, context: Context) -> Iterator[tuple[Reach | None, Tensor, bool]]:
    call, standing = layer.call, context.standing
    total, device = call.key_BGSD.shape[2], call.query_BHTD.device
    reaches = context.promise.reaches
    if context.both_ways or not reaches:
        readable = readable_of(layer)
        yield (
            None,
            readable if context.both_ways else readable & standing.allowed(FULL, total, device)[0],
            False,
        )
        return
    if context.known and context.known.reach:
        reaches = (context.known.reach,)
    for reach in reaches:
        yield reach, *standing.allowed(reach, total, device)


def readable_of(layer: Attended) -> Tensor:
    """What the kernel really reads, (B, H, T, S)."""
    return weights_of(layer.call, blank=True) > 0


def _sinks(layer: Attended) -> Tensor | None:
    call, heads = layer.call, layer.call.query_BHTD.shape[1]
    sinks_H = sinks_of(call.module, heads)
    if sinks_H is None:
        sinks_H = next(
            (call.options[name] for name in SINKS if is_sink(call.options.get(name), heads)), None
        )
    return None if sinks_H is None else sinks_H.detach().double().flatten()


def is_sink(value: Any, heads: int) -> bool:
    """Whether an option of a kernel is a sink for each head."""
    return isinstance(value, Tensor) and value.numel() == heads


def bias_of(layer: Attended) -> Tensor | None:
    """What is added to the scores besides the mask: finite numbers in a float mask, or a position
    bias.
    """
    mask, total = layer.call.mask, layer.call.key_BGSD.shape[2]
    found = layer.call.options.get("position_bias")
    bias = found.double() if isinstance(found, Tensor) else None
    added = bias_in(mask[..., :total] if isinstance(mask, Tensor) else None)
    if added is not None:
        bias = added.double() if bias is None else bias + added.double()
    return bias


def _held_bias(
    layer: Attended, context: Context, observed: Tensor | None, allowed: Tensor, scale: float
) -> tuple[Tensor | None, Tensor | None]:
    """(bias, slopes_H): what is added, or the linear bias that one forward or the config says must
    be added instead.
    """
    known, call = context.known, layer.call
    promised_H = expected_slopes(context.config, call.module, call.query_BHTD.shape[1])
    if promised_H is None or (observed is None and known is None):
        return observed, None
    slopes_H = _slopes(layer, observed, allowed, len(promised_H))
    wanted_H = (
        known.slopes_H
        if known
        else None
        if slopes_H is None
        else corrected_slopes(slopes_H, promised_H.to(slopes_H), scale)
    )
    same = (
        slopes_H is not None and wanted_H is not None and not beyond(slopes_H / wanted_H, 1.0, SAME)
    )
    if same or wanted_H is None:
        return observed, slopes_H
    keys_S = torch.arange(call.key_BGSD.shape[2], device=allowed.device, dtype=torch.float64)
    return wanted_H[None, :, None, None] * keys_S, wanted_H


def _slopes(layer: Attended, observed: Tensor | None, allowed: Tensor, heads: int) -> Tensor | None:
    """slopes_H of what is added over the keys that are promised."""
    new, total = layer.call.query_BHTD.shape[2], layer.call.key_BGSD.shape[2]
    if observed is None:
        return None
    rows = max(observed.shape[0], allowed.shape[0])
    return slopes_of(
        observed.expand(rows, heads, new, total),
        allowed.expand(rows, -1, new, total),
        layer.call.query_BHTD.dtype,
    )
