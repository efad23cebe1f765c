"""Changing the arguments of a model's forward on their way in: for models broken on purpose and for
planted faults.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

Edit = Callable[[dict[str, Any]], dict[str, Any]]


def wrap_forward(model: nn.Module, edit: Edit) -> None:
    """Every call of this model from now on passes its keyword arguments through `edit` first."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **edit(kwargs))

    model.forward = forward


@contextlib.contextmanager
def edited(model: nn.Module, edit: Edit) -> Iterator[None]:
    """`wrap_forward` for a while."""
    before = model.__dict__.get("forward")
    wrap_forward(model, edit)
    try:
        yield
    finally:
        del model.forward
        if before is not None:
            model.forward = before
