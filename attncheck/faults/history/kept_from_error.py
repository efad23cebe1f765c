"""What it is
    A forward that ends in an exception leaves something set that the next one takes for its own.

How it looks
    After one failed request (out of memory, a bad input) every answer is wrong until the process is
    restarted.

Where it comes from
    A flag, a counter or a cache on the module that the end of forward resets, without `finally`.

What to change
    Keep nothing on the module; otherwise reset it in a `finally` block.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from attncheck.faults.engine import Fault, injection
from attncheck.model.subject import Subject

CHANGE = 1.5


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """A forward that did not end leaves hidden states larger from then on."""
    busy: list[bool] = []
    kept: list[bool] = []

    def begins(module: nn.Module, args: Any) -> None:
        kept.extend(busy)
        busy[:] = [True]

    def ends(module: nn.Module, args: Any, output: Any) -> None:
        busy.clear()

    def change(hidden_BTW: Tensor) -> Tensor:
        return hidden_BTW * CHANGE if kept else hidden_BTW

    model = subject.model
    with (
        injection.at_hidden(subject, change),
        model.register_forward_pre_hook(begins),
        model.register_forward_hook(ends),
    ):
        yield


FAULT = Fault(name="kept-from-error", inject=inject)
