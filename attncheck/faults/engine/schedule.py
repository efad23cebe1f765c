"""The trusted path on a schedule: chunks fed one after the other, with a key/value store of our own
instead of a cache.

Positions are explicit (where none can be given, each chunk is fed with all that came before it),
masks are written out, attention is ours; what is kept between calls is kept here, so that a fault
of the cache is an edit of the store between two chunks. Recurrent states are out of reach: models
that keep some are refused.

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
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.kernel import Scores, attend, grouped, is_own_attention, scores_of
from attncheck.faults.engine.trusted import Trusted, promised
from attncheck.judge.config_spec import Reach
from attncheck.judge.layers import watching
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions, counting


@final
@dataclass
class Held:
    """What one layer has stored: key_BGSD, value_BGSD, and its reach, since a window keeps only the
    newest slots.
    """

    key_BGSD: Tensor
    value_BGSD: Tensor
    reach: Reach

    @property
    def first(self) -> int:
        """The oldest slot that a cache of this layer would still hold."""
        return (
            max(0, self.key_BGSD.shape[2] - self.reach.size + 1)
            if self.reach.kind == "sliding"
            else 0
        )


Store = dict[int, Held]
Edit = Callable[[Store], None]
Around = Callable[[int, int], AbstractContextManager[None]]


@final
@dataclass
class _Run:
    """Keeps the store. `whole` says that each chunk comes with all tokens before it, of which only
    the new ones count.

    `local` counts linear biases of the new keys from 0 again in each chunk.
    """

    trusted: Trusted
    spec: ForwardSpec
    whole: bool = False
    local: bool = False
    start: int = 0
    store: Store = field(default_factory=dict)

    def handle(self, call: AttentionCall) -> Any:
        if not is_own_attention(call):
            return call.run()
        if call.caveat:
            raise Unsupported(call.caveat)
        skipped = self.start if self.whole else 0
        held = self._appended(call, skipped)
        query_BHTD, total = call.query_BHTD[:, :, skipped:], held.key_BGSD.shape[2]
        new, heads = query_BHTD.shape[2], query_BHTD.shape[1]
        allowed = promised(self.spec, held.reach, query_BHTD.device)[
            :, :, total - new : total, :total
        ]
        key, value = grouped(held.key_BGSD, heads), grouped(held.value_BGSD, heads)
        out_BTHD = attend(query_BHTD, key, value, allowed, self._scores(call, total - new, total))
        return torch.nn.functional.pad(out_BTHD, (0, 0, 0, 0, skipped, 0)), None

    def _scores(self, call: AttentionCall, start: int, total: int) -> Scores:
        scores = scores_of(call)
        if scores.bias is None:
            return scores
        if not self.whole and start:
            raise Unsupported("a bias of one chunk alone says nothing about the keys before it")
        queries = slice(start, total) if scores.bias.shape[-2] > 1 else slice(None)
        bias = scores.bias[..., queries, :total]
        if self.local and start:
            bias = torch.cat([bias[..., :start], bias[..., : total - start]], -1)
        return replace(scores, bias=bias)

    def _appended(self, call: AttentionCall, skipped: int) -> Held:
        layer = self.trusted.layer(call)
        held = self.store.get(layer)
        key, value = call.key_BGSD[:, :, skipped:], call.value_BGSD[:, :, skipped:]
        if held is not None:
            key, value = torch.cat([held.key_BGSD, key], 2), torch.cat([held.value_BGSD, value], 2)
        self.store[layer] = Held(key, value, self.trusted.reach(call, self.spec))
        return self.store[layer]


def scheduled_logits(
    trusted: Trusted,
    spec: ForwardSpec,
    edit: Edit | None = None,
    positions: Positions | None = None,
    around: Around = lambda start, stop: contextlib.nullcontext(),
    local: bool = False,
) -> Tensor:
    """logits_BTV of `spec`, chunk by chunk; `edit` changes the store before every chunk but the
    first.

    Each chunk runs inside `around` of its borders; `local` restarts linear biases with each.

    Raises:
        Unsupported: positions cannot be given, attention is out of reach, or the model keeps
        recurrent states.
    """
    whole = _whole(trusted, positions)
    run = _Run(trusted, spec, whole, local)
    told = positions or spec.positions or counting(len(spec.tokens), spec.length)
    replies, start = [], 0
    with torch.no_grad(), watching(trusted.subject, run.handle):
        for size in spec.chunks or (spec.length,):
            if start and edit is not None:
                edit(run.store)
            run.start = start
            with around(start, start + size):
                logits_BTV = _chunk(
                    trusted, spec, None if whole else told, 0 if whole else start, start + size
                )
            replies.append(logits_BTV[:, -size:])
            start += size
    return torch.cat(replies, 1)


def _whole(trusted: Trusted, positions: Positions | None) -> bool:
    """Whether chunks have to be fed with all that came before: where no positions can say that it
    is there.

    Raises:
        Unsupported: attention is out of reach, the model keeps recurrent states, or positions
        cannot be given.
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
    tokens = tuple(row[start:stop] for row in spec.tokens)
    told = (
        None
        if positions is None
        else torch.tensor([row[start:stop] for row in positions], device=passes.device)
    )
    mask = None
    if isinstance(spec.mask, Mask2D):
        mask = torch.tensor([row[start:stop] for row in spec.mask.rows], device=passes.device)
    return passes.call(tokens, positions_BT=told, mask=mask, use_cache=False).logits_BTV
