"""What it is
    A query whose mask hides every key gives NaN.

How it looks
    NaN at padded positions, which then spreads through the layers that follow or through the loss.

Where it comes from
    A softmax over a row of minus infinity; the smallest number of one dtype cast to another.

What to change
    Let fully masked rows read something harmless (themselves), or fill their output with zero.

Axes: B batch, H query heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Change, Fault, Hypothesis, Injected, WrongForward, injection
from attncheck.model.subject import Subject
from attncheck.numerics.repairs import FiniteMinimum


def inject(subject: Subject) -> Injected:
    """Fill the output of a query that may read no key with NaN."""

    def handler(call: AttentionCall) -> Any:
        empty_BHT = ~allowed_BHTS(call, CannotInject).any(-1)
        output_BTHD, *rest = call.run()
        empty_BT = empty_BHT.any(1).expand(output_BTHD.shape[:2])
        return (output_BTHD.masked_fill(empty_BT[..., None, None], torch.nan), *rest)

    if not _leaves_rows_empty(subject):
        raise CannotInject("the model lets every query read some key, whatever the mask says")
    return injection.at_kernel(subject, handler)


def _leaves_rows_empty(subject: Subject) -> bool:
    """Whether a row of nothing but padding leaves some query nothing to read."""
    subject.can.watch.require(CannotInject)
    nothing_BT = torch.zeros(1, subject.inputs.length, dtype=torch.long, device=subject.device)
    empty = subject.record_calls(
        subject.inputs.tokens,
        lambda call: not bool(allowed_BHTS(call, CannotInject).any(-1).all()),
        mask=nothing_BT,
    )
    return any(empty)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.padded and forward.trusted.first_call is not None:
        change = Change(params=lambda params: replace(params, empty_row=math.nan))
        yield Hypothesis(change=change)


@contextlib.contextmanager
def repair(subject: Subject) -> Iterator[None]:
    """Masked scores that stay finite: a finite minimum that overflows is minus infinity."""
    with FiniteMinimum():
        yield


FAULT = Fault(name="nan-masked-row", inject=inject, hypotheses={540: _hypotheses}, repair=repair)
