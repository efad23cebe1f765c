"""Faults of padding: seen as text, counted as positions, or turned into values that are not finite.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import allowed_BHTS, at_arguments, at_kernel, tokens_before
from attncheck.judge.layers import watching
from attncheck.model.forward_spec import ForwardSpec, counting
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond

SHIFT = 3


def padding_visible(subject: Subject) -> AbstractContextManager[None]:
    """Every padded slot counts as text: the zeros of the 2D mask become ones."""
    subject.can.mask_2d.require(CannotInject)
    name = str(subject.forward_adapter.mask_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask_BS = call.get(name)
        if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2:
            return call
        return {**call, name: torch.ones_like(mask_BS)}

    return at_arguments(subject, edit)


def position_ignores_padding(subject: Subject) -> AbstractContextManager[None]:
    """Positions count columns of the batch, padding included, whatever the caller asks for."""
    subject.can.reads_positions.require(CannotInject)
    subject.can.keeps_prefix.require(CannotInject)
    if not _shift_shows(subject):
        raise CannotInject(
            "moving every position changes nothing here, so counting the padding changes nothing either"
        )
    name = str(subject.forward_adapter.positions_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT, before = call.get(subject.forward_adapter.ids_name), tokens_before(subject, call)
        if not isinstance(ids_BT, Tensor):
            return call
        columns_T = torch.arange(before, before + ids_BT.shape[1], device=ids_BT.device)
        return {**call, name: columns_T.expand(ids_BT.shape).contiguous()}

    return at_arguments(subject, edit)


def _shift_shows(subject: Subject) -> bool:
    """Whether moving all positions by a constant moves the logits: it does not where they are
    purely rotary.
    """
    tokens = (subject.inputs.row[: subject.inputs.length - SHIFT],)
    usual, moved = (
        ForwardSpec(tokens, positions=counting(1, len(tokens[0]), start)) for start in (0, SHIFT)
    )
    return beyond(subject.logits(usual), subject.logits(moved), subject.budget.value)


def nan_masked_row(subject: Subject) -> AbstractContextManager[None]:
    """A query that may read no key gets 0 / 0: its softmax has nothing to share out."""

    def handler(call: AttentionCall) -> Any:
        nothing_BHT = ~allowed_BHTS(call).any(-1)
        output_BTHD, *rest = call.run()
        empty_BT = nothing_BHT.any(1).expand(output_BTHD.shape[:2])
        return (output_BTHD.masked_fill(empty_BT[..., None, None], torch.nan), *rest)

    if not subject.can.kernel and not _leaves_rows_empty(subject):
        raise CannotInject("the model lets every query read some key, whatever the mask says")
    return at_kernel(subject, handler)


def _leaves_rows_empty(subject: Subject) -> bool:
    """Whether a row of nothing but padding leaves some query nothing to read."""
    found: list[bool] = []

    def watch(call: AttentionCall) -> Any:
        found.append(not bool(allowed_BHTS(call).any(-1).all()))
        return call.run()

    nothing_BT = torch.zeros(1, subject.inputs.length, dtype=torch.long, device=subject.device)
    with watching(subject, watch), torch.no_grad():
        subject.passes.call(subject.inputs.tokens, mask=nothing_BT, use_cache=False)
    return any(found)
