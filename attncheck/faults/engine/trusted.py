"""The trusted path: one cache-free forward with explicit positions and attention written out.

It serves as the reference that no bug of the model's masks, cache or kernels can reach. A `Change`
puts exactly one fault into it. The schedule of the failing forward is kept: the queries of each
chunk see what they would have seen then.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import layer_index
from attncheck.attention.masks import allowed_BHTS
from attncheck.attention.reference import AttentionParams, attend, params_of, tiled
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.expected import (
    Allowed,
    View,
    edited,
    expected_keys,
    held,
    nearest_span,
    real_keys,
    segments_of,
)
from attncheck.faults.engine.injection import filled_cache, plain_calls
from attncheck.judge.config_spec import FULL, AttentionSpan, span_spec
from attncheck.model.caches import states
from attncheck.model.forward_spec import (
    ForwardSpec,
    Mask2D,
    Mask4D,
    Positions,
    counting,
    float_mask,
)
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond


@final
@dataclass(frozen=True, kw_only=True)
class Change:
    """One fault on the trusted path, in every layer or in `layers` only.

    `allowed` changes the readable keys of one chunk, (B, 1, T, S) booleans; `span` gives a layer
    another span, and `only_held` limits it to the keys that a cache of the right span still holds;
    `params` changes scale, cap, sinks and bias; `tiled` deals key/value heads out in turn;
    `stored_as` rounds keys and values to another dtype; `added` adds the boolean mask to the scores
    instead of hiding keys; `mask_2d` replaces the 2D mask argument (positions may follow from it).
    `seen` is shown the keys that each layer may read, as expected and with the change.
    """

    positions: Positions | None = None
    mask_2d: Mask2D | None = None
    allowed: Allowed | None = None
    span: Callable[[AttentionSpan], AttentionSpan] | None = None
    only_held: bool = False
    params: Callable[[AttentionParams], AttentionParams] | None = None
    tiled: bool = False
    stored_as: torch.dtype | None = None
    added: bool = False
    layers: range | None = None
    seen: Callable[[View, Tensor, Tensor], None] | None = None

    @property
    def needs_kernel(self) -> bool:
        """Whether the arguments of a forward cannot express it."""
        return any((self.params, self.tiled, self.stored_as, self.added, self.span))


NOTHING = Change()


@final
@dataclass(frozen=True)
class Trusted:
    """The trusted path of one subject.

    `own_masks` takes the masks that the model builds on a plain forward as the expected ones.
    `by_arguments` leaves attention to the model, so that only positions and masks can be changed.
    `caching` lets its forward fill a cache, for faults of forwards without one. `observer` gets
    every self-attention call with its expected keys and its context, and returns the context.
    """

    subject: Subject
    own_masks: bool = False
    by_arguments: bool = False
    caching: bool = False
    observer: Callable[[AttentionCall, Tensor, Tensor], Tensor] | None = None

    @property
    def out_of_reach(self) -> str | None:
        """Why attention is not written out, or None where it is."""
        if self.by_arguments:
            return "attention is left to the model"
        return self.subject.can.watch.reason or None

    def logits(self, spec: ForwardSpec, change: Change = NOTHING) -> Tensor:
        """logits_BTV of `spec` with one fault in it.

        Raises:
            Unsupported: this model leaves no way to make the change.
        """
        with torch.no_grad(), self.attending(spec, change):
            mask = None if self.out_of_reach is None else self._mask_argument(spec, change)
            return self._forward(spec, change, mask)

    def attending(
        self, spec: ForwardSpec, change: Change = NOTHING
    ) -> AbstractContextManager[object]:
        """While active, full forwards over `spec` attend as expected, with the change."""
        if self.out_of_reach is not None:
            return contextlib.nullcontext()

        def handle(call: AttentionCall) -> Any:
            # attention to an encoder stays the model's own, as does arithmetic with a caveat
            if not call.is_self_attention or call.query_BHTD.shape[2] != spec.length:
                return call.run()
            if self.observer is None:
                return call.run() if call.caveat else (self._attention(call, spec, change), None)
            context = call.run()[0] if call.caveat else self._attention(call, spec, change)
            return self.observer(call, self.expected(call, spec), context), None

        return self.subject.handle_calls(handle)

    def _forward(self, spec: ForwardSpec, change: Change, mask: Tensor | None) -> Tensor:
        passes = self.subject.passes
        positions = change.positions or spec.positions
        mask_2d = change.mask_2d or spec.mask
        if mask is None and isinstance(mask_2d, Mask2D):
            mask = torch.tensor(mask_2d.rows, device=passes.device)
        positions_BT = None if positions is None else torch.tensor(positions, device=passes.device)
        output = passes.call(
            spec.tokens,
            positions_BT=positions_BT,
            mask=mask,
            use_cache=self.caching,
            media=spec.media,
        )
        return output.logits_BTV

    def _mask_argument(self, spec: ForwardSpec, change: Change) -> Tensor | None:
        """The change as a 4D mask, for models that compute attention out of reach."""
        if change.needs_kernel:
            raise Unsupported(str(self.out_of_reach))
        if change.allowed is None and segments_of(spec) is None:
            return None
        self.subject.can.mask_4d.require()
        # It would replace the windows that the model builds layer by layer.
        if change.layers is not None or self.subject.facts.window:
            raise Unsupported("one 4D mask serves every layer")
        view = View(spec=spec, layer=0, start=0, stop=spec.length)
        allowed = edited(expected_keys(spec, FULL, self.subject.device), change.allowed, view)
        return float_mask(allowed[:, 0].cpu(), self.subject.dtype, self.subject.device)

    def _attention(self, call: AttentionCall, spec: ForwardSpec, change: Change) -> Tensor:
        layer = self.layer(call)
        if change.layers is not None and layer not in change.layers:
            change = NOTHING
        right = self.span(call, spec)
        span = change.span(right) if change.span else right
        view = View(spec=spec, layer=layer, start=0, stop=spec.length, span=span)
        expected = self.expected(call, spec, None if change.span is None else span)
        allowed = edited(expected, change.allowed, view)
        if change.only_held:
            allowed = allowed & held(spec, right, allowed)
        if change.seen is not None:
            change.seen(view, expected_keys(spec, right, allowed.device), allowed)
        key_BGSD, value_BGSD = (
            each.to(change.stored_as or each.dtype).to(each.dtype)
            for each in (call.key_BGSD, call.value_BGSD)
        )
        params = _changed(params_of(call, allowed), change)
        return attend_widely(call.query_BHTD, key_BGSD, value_BGSD, params)

    def expected(
        self, call: AttentionCall, spec: ForwardSpec, span: AttentionSpan | None = None
    ) -> Tensor:
        """The keys that each query of a whole forward should read, (B, 1, T, T), in the layer's own
        span or another one.
        """
        device = call.query_BHTD.device
        if not self.subject.can.decodes:  # what reads both ways has masks of its own
            return allowed_BHTS(call) & real_keys(spec, device)
        # Where masks follow more than the config (chunks, prefixes), the model's own are expected.
        if self.own_masks and span is None:
            return allowed_BHTS(call) & expected_keys(spec, FULL, device)
        return expected_keys(spec, span or self.span(call, spec), device)

    def plain_logits(self, spec: ForwardSpec) -> Tensor:
        """logits_BTV of one cache-free forward over `spec`, its attention as the caller handles
        it.
        """
        mask = None if self.out_of_reach is None else self._mask_argument(spec, NOTHING)
        return self._forward(spec, NOTHING, mask)

    def layer(self, call: AttentionCall) -> int:
        """The number of the layer that makes this call."""
        return layer_index(call.module, self._names.get(id(call.module), "")) or 0

    @cached_property
    def _names(self) -> dict[int, str]:
        return {id(module): name for name, module in self.subject.model.named_modules()}

    @cached_property
    def origin(self) -> int:
        """The position that the model itself gives the first token: 0, or padding id + 1."""
        plain = ForwardSpec(self.subject.inputs.tokens)
        usual_BTV, budget = self.logits(plain), self.subject.budget.value
        pad = getattr(self.subject.text_config, "pad_token_id", None)
        # Some models give padding a position of its own and count on from there.
        for start in (0, pad + 1 if isinstance(pad, int) else 1):
            counted = replace(plain, positions=counting(1, plain.length, start))
            if not beyond(self.logits(counted), usual_BTV, budget):
                return start
        return 0

    @cached_property
    def keeps_states(self) -> bool:
        """Whether anything but keys and values is kept between calls."""
        return bool(states(filled_cache(self.subject)))

    @cached_property
    def first_call(self) -> AttentionCall | None:
        """The first self-attention call over the main input; None where none is in reach."""
        if self.out_of_reach is not None:
            return None
        return next((each for each in plain_calls(self.subject) if each.is_self_attention), None)

    def windows(self, spec: ForwardSpec) -> frozenset[AttentionSpan]:
        """The spans of the layers, where any has a window and the trusted path can change it."""
        if isinstance(spec.mask, Mask4D) or self.out_of_reach is not None:
            return frozenset()
        return self._windows

    @cached_property
    def _windows(self) -> frozenset[AttentionSpan]:
        plain = ForwardSpec(self.subject.inputs.tokens)
        calls = (call for call in plain_calls(self.subject) if call.is_self_attention)
        spans = frozenset(self.span(call, plain) for call in calls)
        return spans if spans - {FULL} else frozenset()

    def segmented(self, spec: ForwardSpec) -> bool:
        """Whether the forward holds several documents that may not read each other."""
        segments = segments_of(spec)
        return segments is not None and any(len(set(row)) > 1 for row in segments)

    def span(self, call: AttentionCall, spec: ForwardSpec) -> AttentionSpan:
        """How far back this layer may read in this forward: a 4D mask replaces its window."""
        if isinstance(spec.mask, Mask4D):
            return FULL
        spans = span_spec(self.subject.text_config, call.module, self.layer(call)).spans
        if len(spans) < 2:
            return next(iter(spans), FULL)
        window = call.options.get("sliding_window", getattr(call.module, "sliding_window", ...))
        if window is ...:
            return nearest_span(spans, call, spec)
        return next((each for each in spans if (each.kind == "sliding") == bool(window)), FULL)


def _changed(params: AttentionParams, change: Change) -> AttentionParams:
    if change.tiled:
        params = replace(params, heads=tiled(len(params.heads), 1 + max(params.heads)))
    if change.params is not None:
        params = change.params(params)
    if change.added:
        # Eager attention adds a boolean mask as 0 and 1, which hides nothing.
        bias = params.allowed.to(torch.float64)
        params = replace(
            params,
            bias=bias if params.bias is None else bias + params.bias,
            allowed=torch.ones_like(params.allowed),
        )
    return params


def attend_widely(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, params: AttentionParams
) -> Tensor:
    """Reference attention in at least float32, (B, T, H, D), as kernels return it."""
    context_BTHD = attend(query_BHTD, key_BGSD, value_BGSD, params, at_least=torch.float32)
    return context_BTHD.contiguous()
