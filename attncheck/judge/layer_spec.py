"""The attention parameters that one layer may have: every set that its config, and what it states
itself, allow.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.alibi import corrected_slopes, expected_slopes, slopes_of
from attncheck.attention.call import weights_of
from attncheck.attention.masks import bias_in, bias_of, readable
from attncheck.attention.reference import AttentionParams, grouped
from attncheck.judge.config_spec import (
    FULL,
    SAME,
    AttentionSpan,
    ScaleSpec,
    SpanSpec,
    own_softcap,
    scale_specs,
    sinks_of,
    softcap_spec,
)
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.projections import ProjectionSource
from attncheck.numerics.divergence import max_abs_diff

SINKS = ("s_aux", "sinks")
VANISHING = -80.0
"""exp() of less than this may be zero in float32."""
UNTRACED = "queries or keys were not traced to a projection"


@final
@dataclass(frozen=True, kw_only=True)
class CallPosition:
    """`new` queries after `before` tokens. The first `padding` slots of each row (of no row, if
    empty) are padding.
    """

    new: int
    before: int = 0
    padding: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """How many slots there are after this call."""
        return self.before + self.new

    def real_BT(self, device: torch.device) -> Tensor:
        """Which queries are tokens: (B, T) booleans, (1, T) without padding."""
        slots_T = torch.arange(self.before, self.stop, device=device)
        return slots_T[None] >= torch.tensor(self.padding or (0,), device=device)[:, None]

    def new_slots(self, total: int) -> slice:
        """Where this call's keys are among `total`: at their own place in a buffer, at the end of
        anything shorter.
        """
        stop = min(self.stop, total)
        return slice(stop - self.new, stop)

    def allowed(self, span: AttentionSpan, total: int, device: torch.device) -> tuple[Tensor, bool]:
        """(B, 1, T, S) booleans for the last `total` keys, or for `total` slots of which the last
        are empty; and whether a key inside the span is no longer among them.
        """
        rows = [self._row(span, padding, device) for padding in self.padding or (0,)]
        allowed_BTS = torch.stack(rows)
        if total >= self.stop:
            empty = allowed_BTS.new_zeros(*allowed_BTS.shape[:2], total - self.stop)
            return torch.cat([allowed_BTS, empty], -1)[:, None], False
        cut = self.stop - total
        return allowed_BTS[..., cut:][:, None], bool(allowed_BTS[..., :cut].any())

    def _row(self, span: AttentionSpan, padding: int, device: torch.device) -> Tensor:
        """(T, S) of one row; its positions count from the first real token."""
        square = torch.zeros(self.stop, self.stop, dtype=torch.bool, device=device)
        real = self.stop - padding
        square[padding:, padding:] = span.allowed_TS(real, real, device)
        return square[self.before :]


@final
@dataclass(frozen=True, kw_only=True)
class AttentionOption:
    """One set of parameters that the layer may have.

    `own_bias` is what the layer really adds to the scores, `slopes_H` its slopes where it is
    linear. `unstated` says why the scale is only what the layer was observed to use; `dropped` that
    the cache no longer has all keys of the span.
    """

    scale: ScaleSpec
    params: AttentionParams
    span: AttentionSpan | None = None
    own_bias: Tensor | None = None
    slopes_H: Tensor | None = None
    unstated: str = ""
    dropped: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class PrefillState:
    """What one forward has shown of a layer; its calls on a cache are checked against it.

    `option` is the one that it uses. `factors` on queries and keys are stated nowhere. `shape` is
    (query heads, KV heads, head width). `budget` is the layer's rounding there: one query alone is
    too small a sample.
    """

    option: AttentionOption
    query: ProjectionSource | None
    key: ProjectionSource | None
    factors: tuple[float, float]
    shape: tuple[int, int, int]
    budget: float


@final
@dataclass(frozen=True, kw_only=True)
class JudgeContext:
    """What is known before a layer is judged.

    `traced` says whether queries and keys were traced to projections, `factor` what was taken off
    both together, `bidirectional` that nothing hides the future from this model.
    """

    config: Any
    position: CallPosition
    span: SpanSpec
    prefill: PrefillState | None = None
    traced: bool = False
    factor: float = 1.0
    bidirectional: bool = False


def shape_of(layer: LayerCall) -> tuple[int, int, int]:
    """Query heads, KV heads and head width of a call."""
    call = layer.call
    return call.query_BHTD.shape[1], call.key_BGSD.shape[1], call.query_BHTD.shape[-1]


def options_of(layer: LayerCall, context: JudgeContext) -> Iterator[AttentionOption]:
    """Every set of parameters that the layer may have."""
    prefill = context.prefill
    if prefill:
        cap, sinks_H = prefill.option.params.cap, prefill.option.params.sinks_H
    else:
        # of an inline one, the option is what was observed
        cap = _stated_softcap(layer, context) or layer.call.options.get("softcap")
        sinks_H = _sinks(layer)
    own_bias = _bias(layer)
    for scale, unstated in _scales(layer, context):
        for span, allowed, dropped in _spans(layer, context):
            bias, slopes_H = _expected_bias(layer, context, own_bias, allowed, scale.value)
            params = AttentionParams(
                scale=scale.value,
                allowed=allowed,
                heads=grouped(*shape_of(layer)[:2]),
                cap=cap or None,
                sinks_H=sinks_H,
                bias=bias,
            )
            yield AttentionOption(
                scale=scale,
                params=params,
                span=span,
                own_bias=own_bias,
                slopes_H=slopes_H,
                unstated=unstated,
                dropped=dropped,
            )


def _stated_softcap(layer: LayerCall, context: JudgeContext) -> float | None:
    """The soft-cap that the config or the layer itself states."""
    return softcap_spec(context.config) or own_softcap(layer.call.module)


def unstated_softcap(layer: LayerCall, context: JudgeContext) -> float:
    """The soft-cap that inline arithmetic was observed to have and nothing states; 0 for none."""
    if not layer.call.inline or _stated_softcap(layer, context):
        return 0.0
    return float(layer.call.options.get("softcap") or 0.0)


def _scales(layer: LayerCall, context: JudgeContext) -> Iterator[tuple[ScaleSpec, str]]:
    """Stated scales first; then what the layer was observed to use, where nothing states any."""
    call = layer.call
    if context.prefill:
        yield context.prefill.option.scale, context.prefill.option.unstated
        return
    stated = scale_specs(context.config, call.module, call.query_BHTD.shape[-1], layer.index)
    yield from ((scale, "") for scale in stated)
    # a kernel gets its scale from the layer: what it gets is no independent statement
    passed = call.options.get("scaling")
    if not isinstance(passed, float):
        return
    if call.inline and context.traced:
        if len(stated) == 1 and abs(passed * context.factor - 1) < SAME:
            reason = "nothing states a scale, and the scores are not scaled"
            yield ScaleSpec(1.0, "the scores themselves"), reason
    elif not context.traced:
        source = "the scores themselves" if call.inline else "the kernel's argument"
        yield ScaleSpec(passed, f"{source} ({UNTRACED})"), UNTRACED if call.inline else ""


def _spans(
    layer: LayerCall, context: JudgeContext
) -> Iterator[tuple[AttentionSpan | None, Tensor, bool]]:
    """(span, the keys that it allows, whether the cache has dropped some of them)."""
    call, position = layer.call, context.position
    total, device = call.key_BGSD.shape[2], call.query_BHTD.device
    if context.bidirectional:
        yield None, readable_keys(layer), False
    elif not context.span.spans:
        yield None, readable_keys(layer) & position.allowed(FULL, total, device)[0], False
    else:
        observed = context.prefill.option.span if context.prefill else None
        for span in (observed,) if observed else context.span.spans:
            yield span, *position.allowed(span, total, device)


def readable_keys(layer: LayerCall) -> Tensor:
    """What the kernel really reads, (B, H, T, S)."""
    read = weights_of(layer.call, blank=True) > 0
    mask, bias = layer.call.mask, bias_in(layer.call.mask)
    if bias is None or mask is None:
        return read
    # a steep linear bias makes the weight of a key vanish that no mask hides
    steep = (bias - bias.amax(-1, keepdim=True) < VANISHING) & readable(mask)
    return read | steep[..., : read.shape[-1]]


def _sinks(layer: LayerCall) -> Tensor | None:
    call, heads = layer.call, layer.call.query_BHTD.shape[1]
    passed = (call.options[name] for name in SINKS if is_sink(call.options.get(name), heads))
    own_H = sinks_of(call.module, heads)
    sinks_H = next(passed, None) if own_H is None else own_H
    return None if sinks_H is None else sinks_H.detach().double().flatten()


def is_sink(value: Any, heads: int) -> bool:
    """Whether an option of a kernel is a sink for each head."""
    return isinstance(value, Tensor) and value.numel() == heads


def _bias(layer: LayerCall) -> Tensor | None:
    """What the layer adds to its scores, in float64."""
    bias = bias_of(layer.call)
    return None if bias is None else bias.double()


def _expected_bias(
    layer: LayerCall,
    context: JudgeContext,
    observed: Tensor | None,
    allowed: Tensor,
    scale: float,
) -> tuple[Tensor | None, Tensor | None]:
    """(bias, slopes_H): what the layer adds, or the linear bias that one forward or the config
    requires instead.
    """
    prefill, call = context.prefill, layer.call
    expected_H = expected_slopes(context.config, call.module, call.query_BHTD.shape[1])
    if expected_H is None or (observed is None and prefill is None):
        return observed, None
    slopes_H = _slopes(layer, observed, allowed, len(expected_H))
    wanted_H: Tensor | None = None
    if prefill:
        wanted_H = prefill.option.slopes_H
    elif slopes_H is not None:
        wanted_H = corrected_slopes(slopes_H, expected_H.to(slopes_H), scale)
    # the layer's own bias where it is right, since a computed one rounds differently
    if wanted_H is None or (slopes_H is not None and max_abs_diff(slopes_H / wanted_H, 1) < SAME):
        return observed, slopes_H
    keys_S = torch.arange(call.key_BGSD.shape[2], device=allowed.device, dtype=torch.float64)
    return wanted_H[None, :, None, None] * keys_S, wanted_H


def _slopes(
    layer: LayerCall, observed: Tensor | None, allowed: Tensor, heads: int
) -> Tensor | None:
    """slopes_H of what is added to the scores of allowed keys."""
    new, total = layer.call.query_BHTD.shape[2], layer.call.key_BGSD.shape[2]
    if observed is None:
        return None
    rows = max(observed.shape[0], allowed.shape[0])
    return slopes_of(
        observed.expand(rows, heads, new, total),
        allowed.expand(rows, -1, new, total),
        layer.call.query_BHTD.dtype,
    )
