"""The trusted path chunk by chunk, with a key/value store of our own instead of a cache.

Positions are explicit, masks are written out, and attention is ours. What is kept between calls is
kept here, so a fault of the cache is an edit of the store between two chunks. Where no positions
can be passed, each chunk is fed with all tokens before it. Models that keep recurrent states are
refused, since those cannot be edited from outside.

Axes: B batch, G key/value heads, H query heads, T new positions, S all positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.reference import AttentionParams, params_of
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.expected import chunk_bounds, expected_keys, first_held
from attncheck.faults.engine.trusted import Trusted, attend_widely
from attncheck.judge.config_spec import AttentionSpan
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions, counting


@final
@dataclass
class Held:
    """What one layer has stored, and its span: a window keeps only the newest slots."""

    key_BGSD: Tensor
    value_BGSD: Tensor
    span: AttentionSpan

    @property
    def first(self) -> int:
        """The oldest slot that a cache of this layer would still hold."""
        return first_held(self.span, self.key_BGSD.shape[2])


Store = dict[int, Held]
Edit = Callable[[Store], None]
Around = Callable[[int, int], AbstractContextManager[None]]


@final
@dataclass
class _Run:
    """Keeps the store during the chunks of one forward.

    `whole` says that each chunk comes with all tokens before it, of which only the new ones count.
    `local` counts linear biases of the new keys from 0 again in each chunk.
    """

    trusted: Trusted
    spec: ForwardSpec
    whole: bool = False
    local: bool = False
    start: int = 0
    store: Store = field(default_factory=dict)

    def handle(self, call: AttentionCall) -> Any:
        if not call.is_self_attention:
            return call.run()
        if call.caveat:
            raise Unsupported(call.caveat)
        skipped = self.start if self.whole else 0
        held = self._appended(call, skipped)
        query_BHTD, total = call.query_BHTD[:, :, skipped:], held.key_BGSD.shape[2]
        start = total - query_BHTD.shape[2]
        allowed = expected_keys(self.spec, held.span, query_BHTD.device)[:, :, start:total, :total]
        params = self._params(call, allowed, start)
        context_BTHD = attend_widely(query_BHTD, held.key_BGSD, held.value_BGSD, params)
        # Tokens before the chunk are fed only to place the new ones; nobody reads their outputs.
        return torch.nn.functional.pad(context_BTHD, (0, 0, 0, 0, skipped, 0)), None

    def _params(self, call: AttentionCall, allowed: Tensor, start: int) -> AttentionParams:
        params, total = params_of(call, allowed), allowed.shape[-1]
        if params.bias is None:
            return params
        if not self.whole and start:
            raise Unsupported("a bias of one chunk alone says nothing about the keys before it")
        queries = slice(start, total) if params.bias.shape[-2] > 1 else slice(None)
        bias = params.bias[..., queries, :total]
        if self.local and start:
            bias = torch.cat([bias[..., :start], bias[..., : total - start]], -1)
        return replace(params, bias=bias)

    def _appended(self, call: AttentionCall, skipped: int) -> Held:
        layer = self.trusted.layer(call)
        held = self.store.get(layer)
        key, value = call.key_BGSD[:, :, skipped:], call.value_BGSD[:, :, skipped:]
        if held is not None:
            key, value = torch.cat([held.key_BGSD, key], 2), torch.cat([held.value_BGSD, value], 2)
        self.store[layer] = Held(key, value, self.trusted.span(call, self.spec))
        return self.store[layer]


def scheduled_logits(
    trusted: Trusted,
    spec: ForwardSpec,
    edit: Edit | None = None,
    positions: Positions | None = None,
    around: Around = lambda start, stop: contextlib.nullcontext(),
    local: bool = False,
) -> Tensor:
    """logits_BTV of `spec`; `edit` changes the store before every chunk but the first.

    Each chunk runs inside `around(start, stop)`; `local` restarts linear biases with each.

    Raises:
        Unsupported: positions cannot be passed, attention is out of reach, or the model keeps
        recurrent states.
    """
    whole = _whole(trusted, positions)
    run = _Run(trusted, spec, whole, local)
    given = positions or spec.positions or counting(len(spec.tokens), spec.length)
    outputs = []
    with torch.no_grad(), trusted.subject.handle_calls(run.handle):
        for start, stop in chunk_bounds(spec):
            if start and edit is not None:
                edit(run.store)
            run.start = start
            with around(start, stop):
                logits_BTV = _chunk(
                    trusted, spec, None if whole else given, 0 if whole else start, stop
                )
            outputs.append(logits_BTV[:, start - stop :])
    return torch.cat(outputs, 1)


def _whole(trusted: Trusted, positions: Positions | None) -> bool:
    """Whether chunks must come with all tokens before them, as no positions can be passed.

    Raises:
        Unsupported: attention is out of reach, the model keeps recurrent states, or positions
        cannot be passed.
    """
    if trusted.out_of_reach is not None:
        raise Unsupported(trusted.out_of_reach)
    if trusted.keeps_states:
        raise Unsupported("the model keeps recurrent states between calls")
    takes_positions = trusted.subject.can.takes_positions
    if positions is not None:
        takes_positions.require()
    return not takes_positions


def _chunk(
    trusted: Trusted, spec: ForwardSpec, positions: Positions | None, start: int, stop: int
) -> Tensor:
    passes = trusted.subject.passes

    def cut(rows: Positions | None) -> Tensor | None:
        if rows is None:
            return None
        return torch.tensor([row[start:stop] for row in rows], device=passes.device)

    return passes.call(
        tuple(row[start:stop] for row in spec.tokens),
        positions_BT=cut(positions),
        mask=cut(spec.mask.rows if isinstance(spec.mask, Mask2D) else None),
        use_cache=False,
    ).logits_BTV


def model_step(
    trusted: Trusted, spec: ForwardSpec, start: int, stop: int, cache: object
) -> tuple[Tensor, object]:
    """logits_BTV of tokens start..stop on the model's own cache, and that cache."""
    passes = trusted.subject.passes
    positions_BT = None
    # A cache that does not count its tokens belongs to a model that reads no positions.
    if trusted.subject.can.takes_positions and cached_length(cache) == start:
        rows = counting(len(spec.tokens), stop - start, start + trusted.origin)
        positions_BT = torch.tensor(rows, device=passes.device)
    tokens = tuple(row[start:stop] for row in spec.tokens)
    with torch.no_grad():
        output = passes.call(tokens, cache=cache, positions_BT=positions_BT, use_cache=True)
    return output.logits_BTV, output.cache
