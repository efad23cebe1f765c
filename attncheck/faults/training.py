"""Faults of the loss and of the gradient.

Axes: B batch, T positions, G key/value heads, S key positions, D head width, W hidden width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from attncheck.attention.interface import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_arguments, at_hidden, at_kernel
from attncheck.model.directional_derivatives import projections
from attncheck.model.loss import own_shift
from attncheck.model.placement import why_not_nudged
from attncheck.model.subject import Subject

IGNORED = -100


def label_shift(subject: Subject) -> AbstractContextManager[None]:
    """Labels are shifted once more than the loss shifts them: each position is trained on the token
    after the next.
    """

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        labels_BT = call.get("labels")
        if not isinstance(labels_BT, Tensor):
            return call
        shifted_BT = labels_BT.roll(-1, 1)
        shifted_BT[:, -1] = IGNORED
        return {**call, "labels": shifted_BT}

    return at_arguments(subject, edit)


def loss_weights(subject: Subject) -> AbstractContextManager[None]:
    """The first label that the loss trains on is left out of it in each row."""
    first = own_shift(subject)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        labels_BT = call.get("labels")
        if not isinstance(labels_BT, Tensor):
            return call
        fewer_BT = labels_BT.clone()
        fewer_BT[:, first] = IGNORED
        return {**call, "labels": fewer_BT}

    return at_arguments(subject, edit)


def gradient_detached(subject: Subject) -> AbstractContextManager[None]:
    """The keys carry no gradient; where the kernel is out of reach, nothing before the second layer
    does.
    """
    if not projections(subject.model):
        raise CannotInject(
            "no query, key or value projection was found whose gradient could be lost"
        )
    reason = why_not_nudged(subject.model)
    if reason is not None:
        raise CannotInject(f"only derivatives along projections show it, and {reason}")
    if not subject.can.kernel:
        return at_hidden(subject, lambda hidden_BTW: hidden_BTW.detach())

    def handler(call: AttentionCall) -> Any:
        call.key_BGSD = call.key_BGSD.detach()
        return call.run()

    return at_kernel(subject, handler)
