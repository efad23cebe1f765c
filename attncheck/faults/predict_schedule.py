"""The trusted path on a schedule: chunks fed one after the other, with a key/value store of our own instead of a cache.

Positions are explicit, masks are written out, attention is ours; what is kept between calls is kept here, so that a fault of
the cache is an edit of the store between two chunks. Recurrent states are out of reach: models that keep some are refused.

Axes: B batch, G key/value heads, H query heads, T new positions, S all positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from attncheck.errors import Unsupported
from attncheck.faults.predict import Trusted, is_own_attention, promised
from attncheck.faults.predict_kernel import attend, grouped, scores_of
from attncheck.subject.attention import KernelCall, intercept
from attncheck.subject.passes import Mask2D, Pass, Positions, counting
from attncheck.subject.promises import Reach


@final
@dataclass
class Held:
    """What one layer has stored: key_BGSD, value_BGSD, and its reach, since a window keeps only the newest slots."""

    key_BGSD: Tensor
    value_BGSD: Tensor
    reach: Reach

    @property
    def first(self) -> int:
        """The oldest slot that a cache of this layer would still hold."""
        return max(0, self.key_BGSD.shape[2] - self.reach.size + 1) if self.reach.kind == "sliding" else 0


Store = dict[int, Held]
Edit = Callable[[Store], None]
Around = Callable[[int, int], AbstractContextManager[None]]


@final
@dataclass
class _Run:
    trusted: Trusted
    asked: Pass
    store: Store = field(default_factory=dict)

    def handle(self, call: KernelCall) -> Any:
        if not is_own_attention(call):
            return call.run()
        layer = self.trusted.layer(call)
        held = self._appended(call, layer)
        new, total, heads = call.query_BHTD.shape[2], held.key_BGSD.shape[2], call.query_BHTD.shape[1]
        allowed = promised(self.asked, held.reach, call.query_BHTD.device)[:, :, total - new : total, :total]
        key, value = grouped(held.key_BGSD, heads), grouped(held.value_BGSD, heads)
        return attend(call.query_BHTD, key, value, allowed, scores_of(call)), None

    def _appended(self, call: KernelCall, layer: int) -> Held:
        held = self.store.get(layer)
        key, value = call.key_BGSD, call.value_BGSD
        if held is not None:
            key, value = torch.cat([held.key_BGSD, key], 2), torch.cat([held.value_BGSD, value], 2)
        self.store[layer] = Held(key, value, self.trusted.reach(call, self.asked))
        return self.store[layer]


def scheduled_logits(
    trusted: Trusted,
    asked: Pass,
    edit: Edit | None = None,
    positions: Positions | None = None,
    around: Around = lambda start, stop: contextlib.nullcontext(),
) -> Tensor:
    """logits_BTV of `asked`, chunk by chunk; `edit` changes the store before every chunk but the first.

    Each chunk runs inside `around` of its borders.

    Raises:
        Unsupported: positions cannot be given, attention is out of reach, or the model keeps recurrent states.
    """
    _require(trusted)
    run = _Run(trusted, asked)
    told = positions or asked.positions or counting(len(asked.tokens), asked.length)
    replies, start = [], 0
    with torch.no_grad(), intercept(trusted.subject.model, run.handle):
        for size in asked.chunks or (asked.length,):
            if start and edit is not None:
                edit(run.store)
            with around(start, start + size):
                replies.append(_chunk(trusted, asked, told, start, start + size))
            start += size
    return torch.cat(replies, 1)


def _require(trusted: Trusted) -> None:
    can = trusted.subject.can
    reason = can.kernel or can.takes_positions
    if reason is not None:
        raise Unsupported(reason)
    if trusted.keeps_states:
        raise Unsupported("the model keeps recurrent states between calls")


def _chunk(trusted: Trusted, asked: Pass, positions: Positions, start: int, stop: int) -> Tensor:
    passes = trusted.subject.passes
    tokens = tuple(row[start:stop] for row in asked.tokens)
    positions_BT = torch.tensor([row[start:stop] for row in positions], device=passes.device)
    mask = None
    if isinstance(asked.mask, Mask2D):
        mask = torch.tensor([row[start:stop] for row in asked.mask.rows], device=passes.device)
    return passes.call(tokens, positions_BT=positions_BT, mask=mask, use_cache=False).logits_BTV
