"""What it is
    Query heads are dealt out to key/value heads in turn (0, 1, 0, 1) instead of in blocks (0, 0, 1,
    1).

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
from typing import Any

import torch

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Change, Fault, Hypothesis, WrongForward, injection
from attncheck.model.subject import Subject


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let query head h read KV head h modulo G."""
    subject.can.watch.require(CannotInject)
    if not any(subject.record_calls(subject.inputs.tokens, _has_groups)):
        raise CannotInject(
            "every query head has its own KV head, or all share one: there are no groups to mix up"
        )

    def handler(call: AttentionCall) -> Any:
        if not _has_groups(call):
            return call.run()
        heads, kv_heads = call.query_BHTD.shape[1], call.key_BGSD.shape[1]
        order_H = torch.arange(heads).view(-1, kv_heads).T.flatten()
        call.query_BHTD = call.query_BHTD[:, order_H]
        output_BTHD, *rest = call.run()
        return (output_BTHD[:, :, order_H.argsort()], *rest)

    with injection.at_kernel(subject, handler):
        yield


def _has_groups(call: AttentionCall) -> bool:
    return injection.repeats(call) > 1 and call.key_BGSD.shape[1] > 1


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    first = forward.trusted.first_call
    if first is not None and 1 < first.key_BGSD.shape[1] < first.query_BHTD.shape[1]:
        yield Hypothesis(change=Change(tiled=True))


FAULT = Fault(name="kv-groups-tiled", inject=inject, hypotheses={500: _hypotheses})
