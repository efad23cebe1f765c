"""Faults of what generate() hands over and takes back.

Axes: B batch, T positions of this call, N kept positions.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_arguments, tokens_before
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject

KEEP = "logits_to_keep"


def generate_positions(subject: Subject) -> AbstractContextManager[None]:
    """Positions that are handed over with a filled cache count one too far."""
    subject.can.reads_positions.require(CannotInject)
    _require_counting_cache(subject)
    name = str(subject.forward_adapter.positions_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        given = call.get(name)
        before = tokens_before(subject, call)
        if not before:
            return call
        if isinstance(given, Tensor):
            return {**call, name: given + 1}
        ids_BT = call[subject.forward_adapter.ids_name]
        counted_T = torch.arange(before + 1, before + 1 + ids_BT.shape[1], device=ids_BT.device)
        return {**call, name: counted_T.expand(ids_BT.shape).contiguous()}

    return at_arguments(subject, edit)


def generate_repeats_token(subject: Subject) -> AbstractContextManager[None]:
    """The first step after a prompt feeds the prompt's last token again, on top of a cache that
    already holds it.
    """
    last: list[Tensor] = []

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT, before = call.get(subject.forward_adapter.ids_name), tokens_before(subject, call)
        if not isinstance(ids_BT, Tensor):
            return call
        if ids_BT.shape[1] != 1 or not before:
            last[:] = [ids_BT[:, -1:]]
            return call
        fed = {
            name: value
            for name, value in call.items()
            if name not in (subject.forward_adapter.positions_name, "cache_position")
        }
        if last and last[0].shape == ids_BT.shape:
            fed[subject.forward_adapter.ids_name] = torch.cat([last.pop(), ids_BT], 1)
        return _lengthened(subject, fed, before + fed[subject.forward_adapter.ids_name].shape[1])

    subject.can.cache.require(CannotInject)
    _require_counting_cache(subject)
    return at_arguments(subject, edit)


def _require_counting_cache(subject: Subject) -> None:
    subject.can.steps_agree.require(CannotInject)
    if not cached_length(subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True))):
        raise CannotInject("the cache does not count its tokens")


def _lengthened(subject: Subject, call: dict[str, Any], total: int) -> dict[str, Any]:
    """The call with a 2D mask that covers all `total` tokens."""
    mask_BS = call.get(subject.forward_adapter.mask_name or "")
    if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2:
        return call
    more_BS = mask_BS.new_ones(mask_BS.shape[0], max(0, total - mask_BS.shape[1]))
    return {**call, str(subject.forward_adapter.mask_name): torch.cat([mask_BS, more_BS], 1)}


def logits_to_keep(subject: Subject) -> AbstractContextManager[None]:
    """`logits_to_keep` keeps the logits of one position too early."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        kept, ids_BT = call.get(KEEP), call.get(subject.forward_adapter.ids_name)
        if (
            not isinstance(kept, int)
            or kept < 1
            or not isinstance(ids_BT, Tensor)
            or ids_BT.shape[1] <= kept
        ):
            return call
        length = ids_BT.shape[1]
        return {**call, KEEP: torch.arange(length - kept - 1, length - 1, device=ids_BT.device)}

    if KEEP not in inspect.signature(subject.model.forward).parameters:
        raise CannotInject(f"forward takes no `{KEEP}`")
    return at_arguments(subject, edit)
