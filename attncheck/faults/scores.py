"""Faults of how scores become weights, and of which head reads which.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_hidden, at_kernel, at_own_kernel, repeats
from attncheck.judge.layers import watching
from attncheck.model.subject import Subject

SCALE = 0.5
DROPOUT = 0.1
CAPS = ("softcap",)
SINKS = ("s_aux", "sinks")


def softmax_scale(subject: Subject) -> AbstractContextManager[None]:
    """Scores are scaled twice, in the implementation in force."""

    def handler(call: AttentionCall) -> Any:
        call.query_BHTD = call.query_BHTD * SCALE
        return call.run()

    return at_own_kernel(subject, handler)


def _calls_of_one_forward(subject: Subject) -> list[AttentionCall]:
    seen: list[AttentionCall] = []

    def watch(call: AttentionCall) -> Any:
        seen.append(call)
        return call.run()

    subject.can.watch.require(CannotInject)
    with watching(subject, watch), torch.no_grad():
        subject.passes.call(subject.inputs.tokens, use_cache=False)
    return seen


@contextlib.contextmanager
def softcap_missing(subject: Subject) -> Iterator[None]:
    """The kernel drops the soft-cap of the scores."""
    if not any(
        call.options.get(name) is not None
        for call in _calls_of_one_forward(subject)
        for name in CAPS
    ):
        raise CannotInject("no layer hands its kernel a soft-cap")

    def handler(call: AttentionCall) -> Any:
        call.options = {name: value for name, value in call.options.items() if name not in CAPS}
        return call.run()

    with at_own_kernel(subject, handler):
        yield


@contextlib.contextmanager
def sink_missing(subject: Subject) -> Iterator[None]:
    """The learned sinks take no share of the softmax."""
    if not any(
        isinstance(call.options.get(name), Tensor)
        for call in _calls_of_one_forward(subject)
        for name in SINKS
    ):
        raise CannotInject("no layer hands its kernel attention sinks")

    def handler(call: AttentionCall) -> Any:
        return _without_sinks(
            call,
            {name: value for name in SINKS if isinstance(value := call.options.get(name), Tensor)},
        )

    with at_own_kernel(subject, handler):
        yield


def _without_sinks(call: AttentionCall, held: dict[str, Tensor]) -> Any:
    """Run with sinks so low that they weigh nothing: some kernels read them from the module, so
    both are lowered.
    """
    lowest = torch.finfo(torch.float32).min / 2
    saved = {name: value.data.clone() for name, value in held.items()}
    try:
        for value in held.values():
            value.data.fill_(max(lowest, torch.finfo(value.dtype).min / 2))
        return call.run()
    finally:
        for name, value in held.items():
            value.data.copy_(saved[name])


@contextlib.contextmanager
def kv_groups_tiled(subject: Subject) -> Iterator[None]:
    """Query head h reads KV head h modulo G instead of its contiguous group: `repeat` for
    `repeat_interleave`.
    """
    calls = _calls_of_one_forward(subject)
    if all(repeats(call) == 1 or call.key_BGSD.shape[1] == 1 for call in calls):
        raise CannotInject(
            "every query head has its own KV head, or all share one: there are no groups to mix up"
        )

    def handler(call: AttentionCall) -> Any:
        if repeats(call) == 1 or call.key_BGSD.shape[1] == 1:
            return call.run()
        order_H = (
            torch.arange(call.query_BHTD.shape[1]).view(-1, call.key_BGSD.shape[1]).T.flatten()
        )
        call.query_BHTD = call.query_BHTD[:, order_H]
        output, *rest = call.run()
        return (output[:, :, order_H.argsort()], *rest)

    with at_kernel(subject, handler):
        yield


def dropout_active(subject: Subject) -> AbstractContextManager[None]:
    """Dropout runs in evaluation mode too."""
    return at_hidden(subject, lambda hidden_BTW: F.dropout(hidden_BTW, DROPOUT, training=True))
