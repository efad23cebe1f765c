"""Keys and values of a cache put in the order of their tokens, as a ring buffer does not keep them.

Axes: B batch, H query heads, G key/value heads, T new tokens, S slots, D head width.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import POSITION_BIAS

CHANNELS = 2
"""So many channels of every head tell one key from another."""
Print = tuple[float, ...]


@final
@dataclass
class TokenOrder:
    """The keys of each layer in the calls of one pass, by token: cached keys are told by their
    values, which a cache does not change.
    """

    known: defaultdict[str, list[Print]] = field(default_factory=lambda: defaultdict(list))

    def applied(self, name: str, call: AttentionCall) -> AttentionCall:
        """The call with its slots in the order of their tokens; as it is where nothing shows
        another order.
        """
        known, prints = self.known[name], _prints(call.key_BGSD)
        new = call.query_BHTD.shape[2]
        old = len(prints) - new
        if prints[:old] == known[len(known) - old :]:
            known += prints[old:]
            return call
        slots = _slots_by_token(known, prints, new)
        if slots is None:
            return call
        known += [prints[slot] for slot in slots[-new:]]
        return _reordered(call, slots)


def _prints(key_BGSD: Tensor) -> list[Print]:
    few_SGC = key_BGSD[0, :, :, :CHANNELS].transpose(0, 1)
    return list(map(tuple, few_SGC.flatten(1).tolist()))


def _slots_by_token(known: list[Print], prints: list[Print], new: int) -> list[int] | None:
    """The slots from the oldest token to the newest; None where several keys are alike, or it shows
    of more or fewer slots than the call has tokens that they are new.
    """
    tokens = {each: token for token, each in enumerate(known)}
    fresh = [slot for slot, each in enumerate(prints) if each not in tokens]
    first = len(prints) - new
    placed = new == 1 or fresh == list(range(first, len(prints)))
    if len(tokens) < len(known) or len(set(prints)) < len(prints) or len(fresh) != new:
        return None
    if not placed:
        return None
    return sorted(range(len(prints)), key=lambda slot: tokens.get(prints[slot], len(known) + slot))


def _reordered(call: AttentionCall, slots: list[int]) -> AttentionCall:
    """The same call with its slots in this order; its kernel still runs in the order of before."""
    mask = call.mask
    if POSITION_BIAS in call.options or (mask is None and call.query_BHTD.shape[2] > 1):
        return call
    if mask is not None and not (isinstance(mask, Tensor) and mask.shape[-1] == len(slots)):
        return call
    back = torch.tensor(slots, device=call.key_BGSD.device).argsort()
    moved = None if mask is None else mask[..., slots]

    def kernel(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, given: Any, **options: Any
    ) -> Any:
        # by identity: the kernel knows its own mask
        usual = mask if given is moved else given[..., back]
        return call.kernel(module, query, key[:, :, back], value[:, :, back], usual, **options)

    return replace(
        call.copy(),
        key_BGSD=call.key_BGSD[:, :, slots],
        value_BGSD=call.value_BGSD[:, :, slots],
        mask=moved,
        kernel=kernel,
    )
