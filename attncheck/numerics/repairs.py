"""Repairs of what is wrong only in a narrow dtype: each changes one thing in a forward, and nothing
where that thing does not happen.

Axes: S key positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.numerics.as_written import AsWritten

SOFTMAX = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax})
CASTS = frozenset(
    {
        torch.Tensor.to,
        torch.Tensor.type,
        torch.Tensor.type_as,
        torch.Tensor.half,
        torch.Tensor.bfloat16,
    }
)
HALVES = frozenset({torch.bfloat16, torch.float16})


def _half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in HALVES


@final
class WideSoftmax(AsWritten):
    """While active, a softmax over half precision is computed in float32 and rounded once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func not in SOFTMAX or not args or not _half(args[0]):
            return func(*args, **named)
        wanted = named.pop("dtype", None) or args[0].dtype
        return func(args[0].float(), *args[1:], **named).to(wanted)


@final
class FiniteMinimum(AsWritten):
    """While active, scores of minus infinity become the smallest finite number of their dtype
    before a softmax: a finite minimum that overflowed is finite again.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in SOFTMAX and args:
            return func(_finite(args[0]), *args[1:], **named)
        if func is F.scaled_dot_product_attention:
            args = (*args[:3], *map(_finite, args[3:4]), *args[4:])
            named = {name: _finite(value) for name, value in named.items()}
        return func(*args, **named)


def _finite(scores: Any) -> Any:
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        return scores
    return scores.clamp_min(torch.finfo(scores.dtype).min)


@final
class WidePositions(AsWritten):
    """While active, whole numbers that are cast to half precision become float32 instead: positions
    above 256 have no bfloat16 of their own.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        whole = bool(args) and isinstance(args[0], Tensor) and not args[0].is_floating_point()
        return args[0].float() if func in CASTS and whole and _half(result) else result
