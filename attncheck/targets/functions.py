"""A function from ids to logits as a model.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn


class FunctionModel(nn.Module):
    """Calls a function; modules that it closes over are registered, so that they are cast and
    compared. Tensors that it holds in any other way stay in their dtype.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for name, value in closed_over(function):
            if isinstance(value, nn.Module):
                self.add_module(name, value)
        self.eval()

    def forward(self, input_ids: Tensor) -> Any:
        """logits_BTV of ids_BT, as the function returns them."""
        return self.function(input_ids)


def as_module(made: Any) -> Any:
    """A function as a module; anything else is left alone."""
    is_function = callable(made) and not isinstance(made, (nn.Module, type))
    return FunctionModel(made) if is_function else made


def closed_over(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a function, or a method's object, can reach by name."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    owner = getattr(function, "__self__", None)
    yield from (vars(owner) if hasattr(owner, "__dict__") else {}).items()
    try:
        yield from inspect.getclosurevars(function).nonlocals.items()
    except TypeError:
        yield from vars(function).items() if hasattr(function, "__dict__") else ()
