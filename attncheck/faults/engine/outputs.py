"""The hidden states in what a module returns: a tensor, or the first one of a container."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def hidden_in(output: Any) -> Tensor | None:
    """The three-dimensional tensor that a module returns, alone or first in a container."""
    parts = output.values() if isinstance(output, Mapping) else output
    first = next(iter(parts), None) if isinstance(output, (tuple, list, Mapping)) else output
    return first if isinstance(first, Tensor) and first.ndim == 3 else None


def with_first(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with its first tensor changed, in the container that it came in."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, dict) and output:
        name, first = next(iter(output.items()))
        return {**output, name: change(first)} if isinstance(first, Tensor) else output
    if not (isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor)):
        return output
    parts = (change(output[0]), *output[1:])
    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
