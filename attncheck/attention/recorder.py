"""Record or change the attention calls of a model, wherever the model computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import nn

from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.inline import Refusals, observe_inline
from attncheck.attention.interface import intercept

T = TypeVar("T")


@contextlib.contextmanager
def capture(model: nn.Module, handler: Handler, *, inline: bool = False) -> Iterator[Refusals]:
    """Route every attention call of the model through `handler`, which returns the kernel's output.

    Calls are caught at transformers' attention interface or, `inline`, in the model's own
    arithmetic. Yields the modules whose arithmetic was not understood, with the reasons.
    """
    if inline:
        with observe_inline(model, handler) as refusals:
            yield refusals
    else:
        with intercept(model, handler):
            yield {}


@contextlib.contextmanager
def record(
    model: nn.Module, keep: Callable[[AttentionCall], T], *, inline: bool = False
) -> Iterator[list[T]]:
    """Collect what `keep` takes from every attention call, in the order of execution."""
    kept: list[T] = []

    def handler(call: AttentionCall) -> Any:
        kept.append(keep(call))
        return call.run()

    with capture(model, handler, inline=inline):
        yield kept
