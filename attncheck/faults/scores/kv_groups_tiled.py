"""What it is
    Query heads are dealt out to key/value heads in turn (0, 1, 0, 1) instead of in blocks (0, 0, 1,
    1); where each has a key/value head of its own, it reads that of the next.

How it looks
    Every shape is right, every logit is wrong; a converted checkpoint speaks nonsense.

Where it comes from
    `repeat` instead of `repeat_interleave`; a reshape to (groups, kv_heads) instead of (kv_heads,
    groups); a conversion that permutes the projections with the wrong number of heads.

What to change
    Query head h reads key/value head h // (heads / kv_heads).

Axes: B batch, H query heads, G key/value heads, T query positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Change, Fault, Hypothesis, WrongForward, injection
from attncheck.model.subject import Subject


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let query head h read KV head h modulo G, or that of the next head where G is H."""
    if not any(map(_has_several, injection.plain_calls(subject))):
        raise CannotInject("all query heads share one KV head: there are none to mix up")

    def handler(call: AttentionCall) -> Any:
        if not _has_several(call):
            return call.run()
        heads, kv_heads = call.query_BHTD.shape[1], call.key_BGSD.shape[1]
        if heads == kv_heads:
            next_H = list(_next(heads))
            call.key_BGSD, call.value_BGSD = call.key_BGSD[:, next_H], call.value_BGSD[:, next_H]
            return call.run()
        order_H = torch.arange(heads).view(-1, kv_heads).T.flatten()
        call.query_BHTD = call.query_BHTD[:, order_H]
        output_BTHD, *rest = call.run()
        return (output_BTHD[:, :, order_H.argsort()], *rest)

    with injection.at_kernel(subject, handler):
        yield


def _has_several(call: AttentionCall) -> bool:
    return call.key_BGSD.shape[1] > 1 and not call.query_BHTD.shape[1] % call.key_BGSD.shape[1]


def _next(heads: int) -> tuple[int, ...]:
    return (*range(1, heads), 0)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    first = forward.trusted.first_call
    if first is None or first.key_BGSD.shape[1] == 1:
        return
    heads = first.query_BHTD.shape[1]
    if first.key_BGSD.shape[1] < heads:
        yield Hypothesis(change=Change(tiled=True))
    else:
        change = Change(params=lambda params: replace(params, heads=_next(len(params.heads))))
        yield Hypothesis("each head reads that of the next", change=change)


FAULT = Fault(name="kv-groups-tiled", inject=inject, hypotheses={500: _hypotheses})
