"""The trusted path: one cache-free forward with explicit positions and attention written out, with
at most one fault in it.

A `Change` is a fault in the form in which the path can have it: other positions, another set of
readable keys, other scores. The schedule of the failing pass is kept: each chunk of queries sees
what it would have seen.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
import itertools
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
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.kernel import (
    Scores,
    attend,
    grouped,
    is_own_attention,
    scores_of,
)
from attncheck.judge.config_spec import FULL, Reach, promised_reach
from attncheck.judge.layers import watching
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
class View:
    """Which part of which layer is computed: queries start..stop of `spec`, keys 0..stop, under
    this layer's `reach`.
    """

    spec: ForwardSpec
    layer: int
    start: int
    stop: int
    reach: Reach = FULL


Allowed = Callable[[Tensor, View], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Change:
    """One fault on the trusted path. `layers` limits it to some layers; None means every layer.

    `allowed` gets (B, 1, T, S) booleans of one chunk and returns them changed; `reach` gives a
    layer another reach, and `only_held` says that the cache still keeps no more than the promised
    one; `scores` changes scale, cap, sinks and bias; `stored_as` has keys and values pass through
    another dtype; `added` adds what may be read to the scores as 1, and hides nothing; `mask_2d`
    replaces the 2D mask that the model is handed (its positions may follow it); `seen` is shown
    what each layer may read by the promise and with the change.
    """

    positions: Positions | None = None
    mask_2d: Mask2D | None = None
    allowed: Allowed | None = None
    reach: Callable[[Reach], Reach] | None = None
    only_held: bool = False
    scores: Callable[[Scores], Scores] | None = None
    tiled: bool = False
    stored_as: torch.dtype | None = None
    added: bool = False
    layers: range | None = None
    seen: Callable[[View, Tensor, Tensor], None] | None = None

    def within(self, layers: range) -> Change:
        """The same fault in some layers only."""
        return replace(self, layers=layers)

    @property
    def at_kernel(self) -> bool:
        """Whether it changes something in attention itself, so that one layer can have it and
        another not.
        """
        return self.allowed is not None or self.needs_kernel

    @property
    def needs_kernel(self) -> bool:
        """Whether it changes more than positions and readable keys, which arguments can say as
        well.
        """
        return any((self.scores, self.tiled, self.stored_as, self.added, self.reach))


NOTHING = Change()


@final
@dataclass(frozen=True)
class Trusted:
    """The trusted path of one subject. `own_masks` takes the masks that the model builds on a plain
    forward for the promise.

    `by_arguments` leaves attention to the model, so that only positions and masks can be changed.
    """

    subject: Subject
    own_masks: bool = False
    by_arguments: bool = False

    @property
    def out_of_reach(self) -> str | None:
        """Why attention is not written out, or None where it is."""
        return (
            "attention is left to the model"
            if self.by_arguments
            else self.subject.can.watch.reason or None
        )

    def logits(self, spec: ForwardSpec, change: Change = NOTHING) -> Tensor:
        """logits_BTV of `spec` with one fault in it.

        Raises:
            Unsupported: this model leaves no way to put the change in.
        """
        with torch.no_grad(), self.attending(spec, change):
            mask = None if self.out_of_reach is None else self._mask_argument(spec, change)
            return self._forward(spec, change, mask)

    def attending(
        self, spec: ForwardSpec, change: Change = NOTHING
    ) -> AbstractContextManager[object]:
        """While active, full forwards over `spec` attend as promised, with the change."""
        if self.out_of_reach is not None:
            return contextlib.nullcontext()

        def handle(call: AttentionCall) -> Any:
            if not is_own_attention(call) or call.caveat or call.query_BHTD.shape[2] != spec.length:
                return call.run()
            return self._attention(call, spec, change), None

        return watching(self.subject, handle)

    def _forward(self, spec: ForwardSpec, change: Change, mask: Tensor | None) -> Tensor:
        passes = self.subject.passes
        positions = change.positions or spec.positions
        mask_2d = change.mask_2d or spec.mask
        if mask is None and isinstance(mask_2d, Mask2D):
            mask = torch.tensor(mask_2d.rows, device=passes.device)
        positions_BT = (
            torch.tensor(positions, device=passes.device) if positions is not None else None
        )
        return passes.call(
            spec.tokens, positions_BT=positions_BT, mask=mask, use_cache=False
        ).logits_BTV

    def _mask_argument(self, spec: ForwardSpec, change: Change) -> Tensor | None:
        """The change as a 4D mask, for models that compute attention out of reach."""
        if change.needs_kernel:
            raise Unsupported(str(self.out_of_reach))
        if change.allowed is None and segments_of(spec) is None:
            return None
        self.subject.can.mask_4d.require()
        if change.layers is not None or self.subject.facts.window:
            raise Unsupported("one 4D mask serves every layer")
        view = View(spec=spec, layer=0, start=0, stop=spec.length)
        allowed = edited(promised(spec, FULL, self.subject.device), change, view)
        return float_mask(allowed[:, 0].cpu(), self.subject.dtype, self.subject.device)

    def _attention(self, call: AttentionCall, spec: ForwardSpec, change: Change) -> Tensor:
        layer = self.layer(call)
        inside = change.layers is None or layer in change.layers
        change = change if inside else NOTHING
        kept = self.reach(call, spec)
        reach = change.reach(kept) if change.reach else kept
        view = View(spec=spec, layer=layer, start=0, stop=spec.length, reach=reach)
        base = (
            self._own(call, spec)
            if self.own_masks and not change.reach
            else promised(spec, view.reach, call.query_BHTD.device)
        )
        scores = change.scores(scores_of(call)) if change.scores else scores_of(call)
        heads = call.query_BHTD.shape[1]
        stored = (
            each.to(change.stored_as or each.dtype).to(each.dtype)
            for each in (call.key_BGSD, call.value_BGSD)
        )
        key, value = (grouped(each, heads, change.tiled) for each in stored)
        allowed = edited(base, change, view)
        if change.only_held:
            allowed = allowed & held(spec, kept, allowed)
        if change.seen is not None:
            change.seen(view, promised(spec, kept, allowed.device), allowed)
        if change.added:
            scores = replace(
                scores,
                bias=allowed.to(call.query_BHTD.dtype)
                + (0 if scores.bias is None else scores.bias),
            )
            allowed = torch.ones_like(allowed)
        return attend(call.query_BHTD, key, value, allowed, scores)

    def _own(self, call: AttentionCall, spec: ForwardSpec) -> Tensor:
        return allowed_BHTS(call) & promised(spec, FULL, call.query_BHTD.device)

    def layer(self, call: AttentionCall) -> int:
        """The number of the layer that makes this call."""
        index = layer_index(call.module, self._names.get(id(call.module), ""))
        return index if index is not None else 0

    @cached_property
    def _names(self) -> dict[int, str]:
        return {id(module): name for name, module in self.subject.model.named_modules()}

    @cached_property
    def origin(self) -> int:
        """The position of the first token where the model counts by itself: 0, or one after the
        padding id.
        """
        plain = ForwardSpec(self.subject.inputs.tokens)
        usual_BTV, budget = self.logits(plain), self.subject.budget.value
        pad = getattr(self.subject.text_config, "pad_token_id", None)
        for start in (0, pad + 1 if isinstance(pad, int) else 1):
            counted = replace(plain, positions=counting(1, plain.length, start))
            if not beyond(self.logits(counted), usual_BTV, budget):
                return start
        return 0

    @cached_property
    def keeps_states(self) -> bool:
        """Whether something else than keys and values is kept between calls."""
        return bool(
            states(
                self.subject.passes.cache(ForwardSpec(self.subject.inputs.tokens, use_cache=True))
            )
        )

    def windows(self, spec: ForwardSpec) -> frozenset[Reach]:
        """The different reaches of this model's layers, where any layer has a window; else nothing."""
        seen: set[Reach] = set()

        def watch(call: AttentionCall) -> Any:
            if is_own_attention(call):
                seen.add(self.reach(call, spec))
            return call.run()

        with watching(self.subject, watch), torch.no_grad():
            self.subject.passes.call(self.subject.inputs.tokens, use_cache=False)
        return frozenset(seen) if seen - {FULL} else frozenset()

    def segmented(self, spec: ForwardSpec) -> bool:
        """Whether the pass holds several documents that may not read each other."""
        segments = segments_of(spec)
        return segments is not None and any(len(set(row)) > 1 for row in segments)

    def reach(self, call: AttentionCall, spec: ForwardSpec) -> Reach:
        """How far back this layer may read in this pass: a 4D mask replaces its window."""
        if isinstance(spec.mask, Mask4D):
            return FULL
        promise = promised_reach(self.subject.text_config, call.module, self.layer(call))
        said = call.options.get("sliding_window", getattr(call.module, "sliding_window", None))
        if len(promise.reaches) == 1 or not promise.reaches:
            return promise.reaches[0] if promise.reaches else FULL
        return next(
            (each for each in promise.reaches if (each.kind == "sliding") == bool(said)), FULL
        )


def segments_of(spec: ForwardSpec) -> tuple[tuple[int, ...], ...] | None:
    """The document of each token: what a 4D mask says, or positions that restart where nothing else
    is said.
    """
    if isinstance(spec.mask, Mask4D):
        return spec.mask.segments
    if spec.positions is None or spec.cached or spec.mask is not None:
        return None
    return tuple(_numbered(row) for row in spec.positions)


def _numbered(row: tuple[int, ...]) -> tuple[int, ...]:
    numbers, number = [0], 0
    for before, now in itertools.pairwise(row):
        number += now <= before
        numbers.append(number)
    return tuple(numbers)


def promised(spec: ForwardSpec, reach: Reach, device: torch.device) -> Tensor:
    """(B, 1, T, T) booleans: causal, within the layer's reach, inside the document, no padding."""
    length = spec.length
    allowed = reach.allowed_TS(length, length, device).expand(len(spec.tokens), 1, length, length)
    segments = segments_of(spec)
    if segments is not None:
        number_BT = torch.tensor(segments, device=device)
        allowed = allowed & (number_BT[:, None, :, None] == number_BT[:, None, None, :])
    if isinstance(spec.mask, Mask2D):
        allowed = (
            allowed
            & torch.tensor(spec.mask.rows, dtype=torch.bool, device=device)[:, None, None, :]
        )
    return allowed


def first_held(view: View) -> int:
    """The oldest key that the cache still holds when the chunk of this view is fed."""
    return max(0, view.start - view.reach.size + 1) if view.reach.kind == "sliding" else 0


def held(spec: ForwardSpec, reach: Reach, like: Tensor) -> Tensor:
    """(1, 1, T, S) booleans: keys that a cache of this reach still holds at each chunk, or that the
    chunk brings itself.
    """
    kept = torch.zeros_like(like[:1, :1])
    for each in chunk_views(View(spec=spec, layer=0, start=0, stop=spec.length, reach=reach)):
        kept[:, :, each.start : each.stop, first_held(each) :] = True
    return kept


def chunk_views(view: View) -> list[View]:
    """The chunks of a pass, each as a view of its own."""
    views, start = [], 0
    for size in view.spec.chunks or (view.spec.length,):
        views.append(replace(view, start=start, stop=start + size))
        start += size
    return views


def edited(allowed: Tensor, change: Change, view: View) -> Tensor:
    """The readable keys with the fault in each chunk; no chunk can read what comes after it."""
    if change.allowed is None:
        return allowed
    out = torch.zeros_like(allowed)
    for each in chunk_views(view):
        rows = allowed[:, :, each.start : each.stop, : each.stop]
        out[:, :, each.start : each.stop, : each.stop] = change.allowed(rows, each)
    return out
