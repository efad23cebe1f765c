"""A direct call of torch's fused attention as a kernel call.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, look

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def fused_call(
    module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
) -> AttentionCall | None:
    """The call behind the arguments of `scaled_dot_product_attention`; None where heads have no
    axis of their own.
    """
    given = {**dict(zip(NAMES, args, strict=False)), **named}
    query, key, value = (given[name] for name in NAMES[:3])
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        return None
    rest = {name: given[name] for name in ("dropout_p", "enable_gqa") if name in given}
    handed = given.get("scale")

    def kernel(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        scaling: float,
    ) -> tuple[Tensor, None]:
        scale = handed if handed is None else scaling
        with look(away=False):
            # bound late, so that whoever watches from outside this call sees it as well
            context = F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal, scale=scale, **rest
            )
        return context.transpose(1, 2), None

    mask = given.get("attn_mask")
    if isinstance(mask, Tensor) and mask.ndim < 4:
        mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    options = {
        "is_causal": bool(given.get("is_causal", False)),
        "scaling": float(handed) if handed is not None else query.shape[-1] ** -0.5,
    }
    return AttentionCall(module, query, key, value, mask, options, kernel, inline=True)
