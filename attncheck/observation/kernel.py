"""What a kernel really used: the queries, keys, values, readable keys and parameters with which our
own attention gives what it returned.

First the arguments that it was passed; then what its own arithmetic multiplied; then its weights,
measured with one-hot values, where it is a black box.

Axes: B batch, H query heads, G key/value heads, T query positions, S key slots, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall, weights_of
from attncheck.attention.masks import allowed_BHTS
from attncheck.attention.reference import AttentionParams, attend, fitted_scale, params_of
from attncheck.core.errors import Unsupported
from attncheck.model.refusal import REFUSALS
from attncheck.observation.ledger import LedgerCall

LOW = (torch.bfloat16, torch.float16, torch.float32)
"""The dtypes that a softmax may have been computed in."""
VISIBLE = 1e-30
"""With queries of zero every readable key has a weight above this."""


@final
@dataclass(frozen=True)
class Used:
    """What one call really computed with. `params.allowed` are the readable slots (B, H, T, S).

    `softmax` is the dtype of the softmax where it is lower than that of the queries.
    """

    query_BHTD: Tensor
    key_BGSD: Tensor
    value_BGSD: Tensor
    params: AttentionParams
    softmax: torch.dtype | None = None

    def context_BTHD(self) -> Tensor:
        """What our own attention makes of it."""
        return context_of(
            self.query_BHTD, self.key_BGSD, self.value_BGSD, self.params, self.softmax
        )


def context_of(
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    params: AttentionParams,
    softmax: torch.dtype | None,
) -> Tensor:
    """context_BTHD of our own attention; slots that nobody reads count as zero."""
    if softmax is None:
        return attend(query_BHTD, key_BGSD, value_BGSD, params, at_least=torch.float32)
    key_BHSD, value_BHSD = key_BGSD[:, list(params.heads)], value_BGSD[:, list(params.heads)]
    scores_BHTS = query_BHTD @ key_BHSD.mT * params.scale
    if params.bias is not None:
        scores_BHTS = scores_BHTS + params.bias
    hidden = ~params.allowed.expand(scores_BHTS.shape)
    lowest = torch.finfo(softmax).min
    weights_BHTS = scores_BHTS.masked_fill(hidden, lowest).to(softmax).softmax(-1)
    return (weights_BHTS.to(query_BHTD.dtype) @ value_BHSD).transpose(1, 2)


def used_by(entry: LedgerCall, real_BT: Tensor | None, limit: float) -> Used | None:
    """The first reading of a call with which our own attention gives its context; None where none
    does.
    """
    for used, context_BTHD in _readings(entry):
        try:
            ours_BTHD = used.context_BTHD()
        except REFUSALS:
            continue
        if ours_BTHD.shape == context_BTHD.shape and agrees(
            ours_BTHD, context_BTHD, real_BT, limit
        ):
            return used
    return None


def agrees(left: Tensor, right: Tensor, real_BT: Tensor | None, limit: float) -> bool:
    """Whether two tensors (B, T, …) agree at real tokens; NaN agrees with NaN."""
    if real_BT is not None:
        left, right = left[real_BT], right[real_BT]
    same = ((left - right).abs() <= limit) | (left.isnan() & right.isnan())
    return bool(same.all())


def _readings(entry: LedgerCall) -> Iterator[tuple[Used, Tensor]]:
    """Ways to read a call, each with the context that it has to give; kernels differ in what they
    give a query that may read no key.
    """
    for used, context_BTHD in _arguments(entry):
        yield used, context_BTHD
        if used.softmax is None and not bool(used.params.allowed.any(-1).all()):
            yield replace(used, params=replace(used.params, empty_row=0.0)), context_BTHD


def _arguments(entry: LedgerCall) -> Iterator[tuple[Used, Tensor]]:
    """What a call may have computed with, each with the context that it has to give."""
    passed = _reading(entry.call)
    if passed is not None:
        yield passed, entry.context_BTHD
    inside = _reading(entry.inside) if entry.inside is not None else None
    if inside is not None and entry.inside_BTHD is not None:
        yield inside, entry.inside_BTHD
    if passed is not None:
        yield from ((replace(passed, softmax=dtype), entry.context_BTHD) for dtype in LOW)
        measured = _measured(entry.call, passed)
        if measured is not None:
            yield measured, entry.context_BTHD


def _reading(call: AttentionCall) -> Used | None:
    """A call as its own arguments say; None where its arithmetic or its mask is not understood."""
    if call.caveat:
        return None
    try:
        allowed = _allowed(call)
    except Unsupported:
        return None
    shape = (*call.query_BHTD.shape[:3], call.key_BGSD.shape[2])
    params = params_of(call, allowed.expand(shape))
    return Used(call.query_BHTD, call.key_BGSD, call.value_BGSD, params)


def _allowed(call: AttentionCall) -> Tensor:
    if call.inline and call.mask is None and call.options.get("is_causal"):
        # torch's fused attention counts queries and keys from the first one of each
        new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
        return torch.ones(1, 1, new, total, dtype=torch.bool).tril()
    return allowed_BHTS(call)


def _measured(call: AttentionCall, passed: Used) -> Used | None:
    """The readable keys, the scale and the map of heads that the kernel's weights show."""
    try:
        with torch.no_grad():
            visible_BHTS = weights_of(call, blank=True) > VISIBLE
            weights_BHTS = weights_of(call)
    except (*REFUSALS, Unsupported):
        return None
    scale, heads = fitted_scale(weights_BHTS, call.query_BHTD, call.key_BGSD, passed.params)
    params = replace(passed.params, scale=scale, heads=heads, allowed=visible_BHTS)
    return replace(passed, params=params)
