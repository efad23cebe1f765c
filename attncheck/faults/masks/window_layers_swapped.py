"""What it is
    The layers with a window and the layers without one are swapped.

How it looks
    Right up to the window; beyond it every layer differs from the config's `layer_types`.

Where it comes from
    `layer_idx % 2` instead of `(layer_idx + 1) % 2`; layers counted from one; a pattern read from
    the wrong end.

What to change
    Take the type of each layer from `config.layer_types[layer_idx]` and from nowhere else.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, injection, windows
from attncheck.judge.config_spec import FULL
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let layers with a window read all that their cache holds, and give the others the window."""
    found = windows.windows_of(subject)
    if not {id(call.module) for call in injection.plain_calls(subject)} - found.modules:
        raise CannotInject("every layer has a window: there is nothing to swap")

    def change(call: AttentionCall, allowed: Tensor, real: Tensor) -> Tensor:
        far = windows.distance(allowed) >= found.size
        return allowed | (real & far) if id(call.module) in found.modules else allowed & ~far

    return windows.at_windows(subject, change)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    spans = forward.trusted.windows(forward.spec)
    if FULL not in spans:
        return
    window = next(span for span in spans if span != FULL)
    yield from windows.respanned(forward, "", lambda span: window if span == FULL else FULL)
    yield from windows.respanned(forward, "all layers have the window", lambda span: window)


FAULT = Fault(name="window-layers-swapped", inject=inject, hypotheses={350: _hypotheses})
