"""What it is
    A layer that should look back over a window reads everything.

How it looks
    Right up to the window, wrong after it; the memory of the cache grows without bound.

Where it comes from
    A 4D or default mask that replaces the sliding one; an implementation that takes no
    `sliding_window`; a flag such as `use_sliding_window` that is read in one place only.

What to change
    Pass every layer the mask of its own type, and pass `sliding_window` to kernels that build their
    mask themselves.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.faults.engine import (
    Allowed,
    Change,
    Fault,
    Hypothesis,
    Injected,
    View,
    WrongForward,
    expected,
    windows,
)
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let every layer read the whole past, whatever its window."""
    return windows.widened(subject, lambda distance, size: distance >= size)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    size = forward.subject.facts.window
    if forward.trusted.windows(forward.spec):
        yield from windows.respanned(forward, "", lambda span: FULL)
    elif size and forward.chunked:
        yield Hypothesis(
            f"the cache keeps a window of {size}, the mask of one forward has none",
            Change(allowed=_held_by_cache(size)),
        )


def _held_by_cache(size: int) -> Allowed:
    """The keys that a cache of this window holds when a chunk is fed, and those of the chunk."""

    def kept(allowed: Tensor, view: View) -> Tensor:
        first = expected.first_held(AttentionSpan("sliding", size), view.start)
        return torch.cat([torch.zeros_like(allowed[..., :first]), allowed[..., first:]], -1)

    return kept


FAULT = Fault(name="window-ignored", inject=inject, hypotheses={340: _hypotheses})
