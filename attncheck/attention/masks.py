"""Which keys the mask of an attention call lets each query read, and what it adds to the scores.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import Unsupported

HIDDEN = float(torch.finfo(torch.float16).min)
"""A float mask hides a key by adding this or less; anything above it is a bias."""
POSITION_BIAS = "position_bias"
"""The keyword with which transformers passes a bias to a kernel beside the mask."""


def readable(mask: Tensor) -> Tensor:
    """A boolean or float mask as booleans: true where the key may be read."""
    return mask if mask.dtype == torch.bool else mask > HIDDEN


def bias_in(mask: Any) -> Tensor | None:
    """What a 4D float mask adds to the scores of readable keys (ALiBi travels that way); None where
    it adds nothing.
    """
    if not isinstance(mask, Tensor) or mask.ndim != 4 or not mask.is_floating_point():
        return None
    bias = torch.where(readable(mask), mask, 0.0)
    return bias if bool(bias.any()) else None


def bias_of(call: AttentionCall) -> Tensor | None:
    """What a call adds to its scores, for the keys that it has: the bias in its mask, and one for
    pairs of positions that is passed beside the mask.
    """
    total, beside = call.key_BGSD.shape[2], call.options.get(POSITION_BIAS)
    within = bias_in(call.mask[..., :total] if isinstance(call.mask, Tensor) else None)
    if not isinstance(beside, Tensor) or beside.ndim != 4:
        return within
    beside = beside[..., :total]
    return beside if within is None else beside + within


def is_causal(call: AttentionCall) -> bool:
    """Whether a call without a mask hides the future: a single query never needs to."""
    stated = call.options.get("is_causal", getattr(call.module, "is_causal", True))
    return call.query_BHTD.shape[2] > 1 and stated is not False


def allowed_BHTS(call: AttentionCall, error: type[Unsupported] = Unsupported) -> Tensor:
    """Which keys each query may read, as booleans that broadcast to (B, H, T, S).

    Raises:
        Unsupported: the mask is of another kind (a flex block mask, a flash kernel's lengths), as
            `error`.
    """
    new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
    if call.mask is None:
        everything = torch.ones(1, 1, new, total, dtype=torch.bool, device=call.query_BHTD.device)
        return everything.tril(total - new) if is_causal(call) else everything
    if not isinstance(call.mask, Tensor) or call.mask.ndim != 4:
        raise error("the attention mask is not a 4D tensor")
    return readable(call.mask[..., :total])


def with_allowed(call: AttentionCall, allowed: Tensor) -> AttentionCall:
    """Give a call another set of readable keys, in place; a float mask keeps its bias."""
    dtype = call.query_BHTD.dtype
    bias = bias_in(call.mask)
    if bias is None:
        bias = torch.zeros_like(allowed, dtype=dtype)
    lowest = max(torch.finfo(torch.float32).min, torch.finfo(dtype).min)
    call.mask = bias.masked_fill(~allowed, lowest).to(dtype)
    if "is_causal" in call.options:
        call.options = {**call.options, "is_causal": False}  # the mask now says everything
    return call
