"""Faults of what generate() hands over and takes back.

Axes: B batch, T positions of this call, N kept positions.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.errors import CannotPlant
from attncheck.faults.planting import at_arguments, tokens_before
from attncheck.subject.subject import Subject

KEEP = "logits_to_keep"


def generate_positions(subject: Subject) -> AbstractContextManager[None]:
    """Positions that are handed over with a filled cache count one too far."""
    if subject.can.reads_positions is not None:
        raise CannotPlant(subject.can.reads_positions)
    name = str(subject.door.positions_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        given = call.get(name)
        before = tokens_before(subject, call)
        if not before:
            return call
        if isinstance(given, Tensor):
            return {**call, name: given + 1}
        ids_BT = call[subject.door.ids_name]
        counted_T = torch.arange(before + 1, before + 1 + ids_BT.shape[1], device=ids_BT.device)
        return {**call, name: counted_T.expand(ids_BT.shape).contiguous()}

    return at_arguments(subject, edit)


def generate_repeats_token(subject: Subject) -> AbstractContextManager[None]:
    """Every single-token step on a cache feeds the token before once more."""
    last: list[Tensor] = []

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT = call.get(subject.door.ids_name)
        if not isinstance(ids_BT, Tensor):
            return call
        repeated = tokens_before(subject, call) > 0 and ids_BT.shape[1] == 1 and bool(last)
        fed = {**call, subject.door.ids_name: last[0]} if repeated and last[0].shape == ids_BT.shape else call
        last[:] = [ids_BT[:, -1:]]
        return fed

    if subject.can.steps is not None:
        raise CannotPlant(subject.can.steps)
    return at_arguments(subject, edit)


def logits_to_keep(subject: Subject) -> AbstractContextManager[None]:
    """`logits_to_keep` keeps the logits of one position too early."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        kept, ids_BT = call.get(KEEP), call.get(subject.door.ids_name)
        if not isinstance(kept, int) or kept < 1 or not isinstance(ids_BT, Tensor) or ids_BT.shape[1] <= kept:
            return call
        length = ids_BT.shape[1]
        return {**call, KEEP: torch.arange(length - kept - 1, length - 1, device=ids_BT.device)}

    if KEEP not in inspect.signature(subject.model.forward).parameters:
        raise CannotPlant(f"forward takes no `{KEEP}`")
    return at_arguments(subject, edit)
