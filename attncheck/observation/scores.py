"""How the parameters of a call differ from those of the trusted path: scale, cap, sinks, bias and
the dtype of the softmax.

Axes: B batch, H query heads, G key/value heads, T queries, S slots, K tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.attention.reference import AttentionParams
from attncheck.core.observed_part import How
from attncheck.numerics.divergence import max_abs
from attncheck.observation.kernel import Used

SAME = 1e-6
"""Two scales are the same within this relative difference."""
ScoreChange = tuple[How, float | None, str]
"""What changed, its amount and its dtype."""


def score_changes(
    used: Used, right: AttentionParams, token_BGS: Tensor, start: int, relative: float
) -> Iterator[ScoreChange]:
    """Every parameter that differs. `relative` is what rounding explains of the largest value."""
    params = used.params
    if not same_scale(params.scale, right.scale, relative):
        yield "scaled", params.scale / right.scale, ""
    if (params.cap or None) != (right.cap or None):
        yield "cap", params.cap, ""
    if (params.sinks_H is None) != (right.sinks_H is None):
        yield "sinks", None, ""
    if used.softmax is not None:
        yield "dtype", None, str(used.softmax).removeprefix("torch.")
    if _bias_differs(params, right, token_BGS, start, relative):
        yield _bias(params, right)


def _bias(params: AttentionParams, right: AttentionParams) -> ScoreChange:
    """A bias that is not the specified one: with its largest value where none is specified, and of
    dtype bool where it is a mask that was added as numbers.
    """
    if params.bias is None or right.bias is not None:
        return "bias", None, ""
    numbers = bool(((params.bias == 0) | (params.bias == 1)).all())
    return "bias", max_abs(params.bias), "bool" if numbers else ""


def same_scale(one: float, other: float, relative: float) -> bool:
    """Whether two scales of the scores are the same up to rounding."""
    return abs(one / other - 1) <= max(SAME, 10 * relative)


def _bias_differs(
    params: AttentionParams, right: AttentionParams, token_BGS: Tensor, start: int, relative: float
) -> bool:
    """Whether biases of readable cells differ by more than a constant for each query, which the
    softmax takes out.
    """
    if params.bias is None and right.bias is None:
        return False
    token_BHS = token_BGS[:, list(params.heads)]
    readable_BHTS = params.allowed & (token_BHS >= 0)[:, :, None]
    shape = readable_BHTS.shape
    observed_BHTS = _zeros(shape, params.allowed) if params.bias is None else params.bias
    expected_BHTS = _at_slots(right, token_BHS, start, shape)
    delta = torch.where(readable_BHTS, observed_BHTS[..., : shape[-1]] - expected_BHTS, 0.0)
    count = readable_BHTS.sum(-1, keepdim=True).clamp_min(1)
    centred = torch.where(readable_BHTS, delta - delta.sum(-1, keepdim=True) / count, 0.0)
    size = max(max_abs(expected_BHTS), max_abs(observed_BHTS), 1.0)
    return max_abs(centred) > 10 * relative * size


def _zeros(shape: torch.Size, like: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device=like.device)


def _at_slots(right: AttentionParams, token_BHS: Tensor, start: int, shape: torch.Size) -> Tensor:
    """The expected bias of each query on the token that each slot holds."""
    if right.bias is None:
        return _zeros(shape, right.allowed)
    new, bias = shape[2], right.bias
    if bias.shape[-2] > 1:
        bias = bias[..., start : start + new, :]
    wide = bias.expand(shape[0], shape[1], new, bias.shape[-1])
    index = token_BHS.clamp_min(0)[:, :, None].expand(shape)
    return wide.gather(-1, index)
