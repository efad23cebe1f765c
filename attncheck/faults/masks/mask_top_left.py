"""What it is
    On a filled cache the causal triangle starts at the first key instead of the first new one:
    query i of a chunk reads keys 0..i, and most of the history is hidden.

How it looks
    One forward is right and chunks on a cache are wrong, even with the right positions. Single
    steps may be right where no mask is built for one query.

Where it comes from
    `is_causal=True` of a fused kernel with fewer queries than keys; `ones(T, S).tril()` without the
    offset.

What to change
    Shift the diagonal by the number of cached tokens: `tril(diagonal=S - T)`, or use a bias aligned
    to the lower right.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    View,
    WrongForward,
    expected,
    injection,
)
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let query i of a call with fewer queries than keys read keys 0..i."""

    def change(allowed: Tensor) -> Tensor:
        return torch.ones_like(allowed).tril() if allowed.shape[2] < allowed.shape[3] else allowed

    (subject.can.decodes & subject.can.cache).require(CannotInject)
    return injection.at_allowed(subject, change)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked:
        yield Hypothesis("", Change(allowed=_top_left))
        yield Hypothesis("in chunks of several tokens", Change(allowed=_top_left_of_several))


def _top_left(allowed: Tensor, view: View) -> Tensor:
    """Query i of the chunk reads the first i + 1 of the keys that the cache still holds."""
    if not view.start:
        return allowed
    first = expected.first_held(view.span, view.start)
    lost = torch.zeros_like(allowed[..., :first])
    return torch.cat([lost, torch.ones_like(allowed[..., first:]).tril()], -1)


def _top_left_of_several(allowed: Tensor, view: View) -> Tensor:
    return _top_left(allowed, view) if allowed.shape[-2] > 1 else allowed


FAULT = Fault(
    name="mask-top-left", inject=inject, hypotheses={320: _hypotheses}, on_cache_only=True
)
