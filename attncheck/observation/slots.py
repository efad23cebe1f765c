"""Which token each slot of a call holds, or should hold.

A slot that has moved together with its key and its value is harmless: attention does not depend on
the order of slots. So the token of a slot is the one that both its key and its value are of, where
no other slot holds that token; otherwise the one that a cache in order has there.

Axes: B batch, G key/value heads, S slots, T tokens, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tokens_of_slots(
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    stop: int,
    head_G: tuple[int, ...],
    limits: tuple[float, float],
) -> Tensor:
    """token_BGS, -1 for a slot that no token belongs to. `keys` and `values` are (observed,
    trusted) each, of heads of their own and of `head_G`.
    """
    observed_BGSD, trusted_BGTD = keys[0], keys[1][:, list(head_G), :stop]
    is_key_BGST = close_pairs(observed_BGSD, trusted_BGTD, limits[0])
    both_BGST = is_key_BGST & close_pairs(values[0], values[1][:, list(head_G), :stop], limits[1])
    return _injective(tokens_in_order(observed_BGSD, stop), both_BGST)


def tokens_in_order(observed_BGSD: Tensor, stop: int) -> Tensor:
    """token_BGS of a cache in order, which holds the last of `stop` tokens."""
    total = observed_BGSD.shape[2]
    usual_S = torch.arange(total) + max(0, stop - total)
    return torch.where(usual_S < stop, usual_S, -1).expand(observed_BGSD.shape[:3]).clone()


def close_pairs(observed_BGSD: Tensor, trusted_BGTD: Tensor, limit: float) -> Tensor:
    """(B, G, S, T) booleans: the observed vector is the trusted one."""
    if observed_BGSD.shape[-1] != trusted_BGTD.shape[-1]:
        shape = (*observed_BGSD.shape[:3], trusted_BGTD.shape[2])
        return torch.zeros(shape, dtype=torch.bool)
    pairs = zip(observed_BGSD.flatten(0, 1), trusted_BGTD.flatten(0, 1), strict=True)
    found = [
        torch.cdist(left.contiguous(), right.contiguous(), p=float("inf")) <= limit
        for left, right in pairs
    ]
    return torch.stack(found).reshape(*observed_BGSD.shape[:3], trusted_BGTD.shape[2])


def _injective(usual_BGS: Tensor, both_BGST: Tensor) -> Tensor:
    """The usual token of each slot, unless its content is that of one token that no other slot
    holds.
    """
    tokens = usual_BGS
    for b, g, s in _unusual(usual_BGS, both_BGST):
        held_T = both_BGST[b, g, s]
        alone_T = held_T & (both_BGST[b, g].sum(0) == 1)
        if bool(alone_T.any()):
            tokens[b, g, s] = int(alone_T.nonzero()[0])
    return _once(tokens, both_BGST)


def _unusual(usual_BGS: Tensor, both_BGST: Tensor) -> list[list[int]]:
    length = both_BGST.shape[-1]
    index_BGS1 = usual_BGS.clamp(0, length - 1)[..., None]
    as_usual_BGS = both_BGST.gather(-1, index_BGS1)[..., 0] & (usual_BGS >= 0)
    found: list[list[int]] = (~as_usual_BGS & both_BGST.any(-1)).nonzero().tolist()
    return found


def _once(token_BGS: Tensor, both_BGST: Tensor) -> Tensor:
    """No token twice: of two slots with one token the one that holds it keeps it."""
    for b, g in torch.cartesian_prod(*map(torch.arange, token_BGS.shape[:2])).tolist():
        row_S = token_BGS[b, g]
        for token in set(row_S[row_S >= 0].tolist()):
            slots = (row_S == token).nonzero().flatten().tolist()
            if len(slots) > 1:
                holding = [s for s in slots if bool(both_BGST[b, g, s, token])] or slots
                for slot in slots:
                    if slot != holding[0]:
                        row_S[slot] = -1
    return token_BGS
