"""Faults of who may read whom.

Axes: B batch, H query heads, T query positions, S key positions, W hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.interface import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import (
    allowed_BHTS,
    at_arguments,
    at_hidden,
    at_kernel,
    tokens_before,
    with_allowed,
)
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond

LEAK = 0.1


def causal_mask_missing(subject: Subject) -> AbstractContextManager[None]:
    """Every query reads every key that any query of the block may read: padding stays hidden, the
    future does not.
    """

    def handler(call: AttentionCall) -> Any:
        allowed = allowed_BHTS(call)
        return with_allowed(call, allowed.any(2, keepdim=True).expand(allowed.shape)).run()

    subject.can.decodes.require(CannotInject)
    if not subject.can.watch and subject.can.mask_4d:
        return _opened(subject)
    return at_kernel(subject, handler)


@contextlib.contextmanager
def _opened(subject: Subject) -> Iterator[None]:
    """Plant through the 4D mask, where that reaches: some layers hide the future on their own as
    well.
    """
    tokens = subject.inputs.tokens
    healthy_BV = subject.logits(ForwardSpec(tokens))[:, 0]
    with at_arguments(subject, lambda call: _unmasked(subject, call)):
        with torch.no_grad():
            opened_BV = subject.passes.call(tokens, use_cache=False).logits_BTV[:, 0]
        if not beyond(opened_BV, healthy_BV, subject.budget.value):
            raise CannotInject("the layers hide the future on their own, whatever the mask says")
        yield


def _unmasked(subject: Subject, call: dict[str, Any]) -> dict[str, Any]:
    ids_BT = call[subject.forward_adapter.ids_name]
    total = tokens_before(subject, call) + ids_BT.shape[1]
    nothing_BTS = torch.zeros(
        ids_BT.shape[0], 1, ids_BT.shape[1], total, dtype=subject.dtype, device=ids_BT.device
    )
    return {**call, str(subject.forward_adapter.mask_name): nothing_BTS}


def mask_off_by_one(subject: Subject) -> AbstractContextManager[None]:
    """Every query reads one key more, the one after its own: `tril(diagonal=1)`."""

    def handler(call: AttentionCall) -> Any:
        allowed = allowed_BHTS(call)
        return with_allowed(
            call, allowed | torch.cat([allowed[:, :, 1:], allowed[:, :, -1:]], 2)
        ).run()

    return at_kernel(subject, handler)


def mask_top_left(subject: Subject) -> AbstractContextManager[None]:
    """On a filled cache, query i reads keys 0..i: `tril(ones(T, S))` hides most of the history."""

    def handler(call: AttentionCall) -> Any:
        allowed = allowed_BHTS(call)
        if allowed.shape[2] < allowed.shape[3]:
            call = with_allowed(call, torch.ones_like(allowed).tril())
        return call.run()

    (subject.can.decodes & subject.can.cache).require(CannotInject)
    return at_kernel(subject, handler)


def leak_outside_attention(subject: Subject) -> AbstractContextManager[None]:
    """A norm or a convolution that looks ahead: each hidden state takes a part of the next one."""

    def change(hidden_BTW: Tensor) -> Tensor:
        return hidden_BTW + LEAK * torch.cat([hidden_BTW[:, 1:], hidden_BTW[:, -1:]], 1)

    return at_hidden(subject, change)


def attention_mask_ignored(subject: Subject) -> AbstractContextManager[None]:
    """The `attention_mask` argument is accepted and dropped."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value for name, value in call.items() if name != subject.forward_adapter.mask_name
        }

    if subject.forward_adapter.mask_name is None:
        raise CannotInject("the model has no `attention_mask` to ignore")
    return at_arguments(subject, edit)


def document_leak(subject: Subject) -> AbstractContextManager[None]:
    """A 4D mask that keeps documents apart becomes a plain causal one."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask = call.get(subject.forward_adapter.mask_name or "")
        if not isinstance(mask, Tensor) or mask.ndim != 4:
            return call
        lowest = float(mask.min())
        new, total = mask.shape[-2:]
        causal_TS = torch.ones(new, total, dtype=torch.bool, device=mask.device).tril(total - new)
        return {
            **call,
            str(subject.forward_adapter.mask_name): torch.zeros_like(mask).masked_fill(
                ~causal_TS, lowest
            ),
        }

    subject.can.mask_4d.require(CannotInject)
    return at_arguments(subject, edit)
