"""Faults of which position a token has.

Axes: B batch, T positions of this call, P cached positions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_arguments, tokens_before
from attncheck.model.subject import Subject

OFFSET = 1
Rule = Callable[[int, int], Tensor]


def _positioned(subject: Subject, rule: Rule) -> AbstractContextManager[None]:
    """Plant positions: `rule` gives position_ids (T,) for P cached tokens and T new ones when P >
    0.
    """
    (subject.can.reads_positions & subject.can.steps).require(CannotInject)
    name, first = str(subject.forward_adapter.positions_name), subject.can.first_position

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT, before = call.get(subject.forward_adapter.ids_name), tokens_before(subject, call)
        if not before or not isinstance(ids_BT, Tensor):
            return call
        rows = rule(before, ids_BT.shape[1]).to(ids_BT.device).expand(ids_BT.shape)
        return {**call, name: rows + first}

    return at_arguments(subject, edit)


def position_restart(subject: Subject) -> AbstractContextManager[None]:
    """Cached calls count from 0 again: the length of the cache was not added."""
    return _positioned(subject, lambda before, new: torch.arange(new))


def position_offset(subject: Subject) -> AbstractContextManager[None]:
    """Cached calls count one too far."""
    return _positioned(
        subject, lambda before, new: torch.arange(before + OFFSET, before + OFFSET + new)
    )


def position_frozen(subject: Subject) -> AbstractContextManager[None]:
    """Every token of a cached call gets the position of the last cached one."""
    return _positioned(subject, lambda before, new: torch.full((new,), before - 1))


def position_ids_ignored(subject: Subject) -> AbstractContextManager[None]:
    """`position_ids` are accepted and dropped."""
    subject.can.reads_positions.require(CannotInject)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in call.items()
            if name != subject.forward_adapter.positions_name
        }

    return at_arguments(subject, edit)
