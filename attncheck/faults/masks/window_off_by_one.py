"""What it is
    The sliding window of a layer is one key longer or shorter than the config says.

How it looks
    Nothing until the input is longer than the window; then a small divergence between
    implementations, or from a reference that follows the config.

Where it comes from
    `<` instead of `<=` in the distance; a cache that keeps `window` keys beside the new one; flash
    kernels, whose `window_size` counts the keys to the left of the query.

What to change
    A window of W means the query itself and W - 1 keys before it, in prefill and in decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, windows
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let every window read one key more than it should: `>=` for `>`."""
    return windows.widened(subject, lambda distance, size: distance == size)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.trusted.windows(forward.spec):
        for step in (1, -1, 2, -2):
            parameter = "" if step == 1 else f"by {step:+d}"
            yield from windows.respanned(forward, parameter, _resized(step))


def _resized(step: int) -> Callable[[AttentionSpan], AttentionSpan]:
    return lambda span: span if span == FULL else AttentionSpan(span.kind, max(1, span.size + step))


FAULT = Fault(name="window-off-by-one", inject=inject, hypotheses={330: _hypotheses})
