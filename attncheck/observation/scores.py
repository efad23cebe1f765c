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
from attncheck.numerics.divergence import max_abs, max_abs_diff
from attncheck.observation.kernel import Used

SAME = 1e-6
"""Two scales are the same within this relative difference."""
ScoreChange = tuple[How, float | None, str]
"""What changed, its amount, and its dtype or how a bias differs from the specified one."""
MISSING, TIMES, RESTARTED, HEADS = "missing", "times", "restarted", "other heads"


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
    if params.bias is None and right.bias is None:
        return
    observed_BHTS, expected_BHTS, size = _biases(params, right, token_BGS, start)
    budget = 10 * relative * size
    if max_abs_diff(observed_BHTS, expected_BHTS) > budget:
        change = _bias(params, right, observed_BHTS, expected_BHTS, budget)
        if start and change[1:] == (None, ""):
            restarted_BHTS = _biases(params, right, token_BGS, 0)[1]
            if max_abs_diff(observed_BHTS, restarted_BHTS) <= budget:
                change = "bias", None, RESTARTED
        yield change


def _bias(
    params: AttentionParams,
    right: AttentionParams,
    observed_BHTS: Tensor,
    expected_BHTS: Tensor,
    budget: float,
) -> ScoreChange:
    """A bias that is not the specified one: with its largest value where none is specified, and of
    dtype bool where it is a mask that was added as numbers.
    """
    if max_abs(observed_BHTS) <= budget:
        return "bias", None, MISSING
    if params.bias is None or max_abs(expected_BHTS) > budget:
        factor = float((observed_BHTS * expected_BHTS).sum() / expected_BHTS.square().sum())
        scaled = max_abs_diff(observed_BHTS, factor * expected_BHTS) <= budget
        if scaled:
            return "bias", None, f"{TIMES} {factor:.6g}"
        return "bias", None, HEADS if _of_other_heads(observed_BHTS, expected_BHTS, budget) else ""
    numbers = bool(((params.bias == 0) | (params.bias == 1)).all())
    return "bias", max_abs(params.bias), "bool" if numbers else ""


def _of_other_heads(observed_BHTS: Tensor, expected_BHTS: Tensor, budget: float) -> bool:
    """Whether the bias of every head is the specified one of some head."""
    pairs_BHNTS = (observed_BHTS[:, :, None] - expected_BHTS[:, None]).abs()
    return bool((pairs_BHNTS.amax((0, 3, 4)) <= budget).any(1).all())


def same_scale(one: float, other: float, relative: float) -> bool:
    """Whether two scales of the scores are the same up to rounding."""
    return abs(one / other - 1) <= max(SAME, 10 * relative)


def _biases(
    params: AttentionParams, right: AttentionParams, token_BGS: Tensor, start: int
) -> tuple[Tensor, Tensor, float]:
    """Observed and expected bias of readable cells without a constant for each query, which the
    softmax takes out, and the largest value.
    """
    token_BHS = token_BGS[:, list(params.heads)]
    readable_BHTS = params.allowed & (token_BHS >= 0)[:, :, None]
    shape = readable_BHTS.shape
    observed_BHTS = _zeros(shape, params.allowed) if params.bias is None else params.bias
    expected_BHTS = _at_slots(right, token_BHS, start, shape)
    count = readable_BHTS.sum(-1, keepdim=True).clamp_min(1)

    def centred(bias_BHTS: Tensor) -> Tensor:
        kept_BHTS = torch.where(readable_BHTS, bias_BHTS.double(), 0.0)
        return torch.where(readable_BHTS, kept_BHTS - kept_BHTS.sum(-1, keepdim=True) / count, 0.0)

    size = max(max_abs(expected_BHTS), max_abs(observed_BHTS), 1.0)
    return centred(observed_BHTS[..., : shape[-1]]), centred(expected_BHTS), size


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
