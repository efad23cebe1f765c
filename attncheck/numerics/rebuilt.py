"""Weights made for one operator, in float64 or moved: autograd makes them again instead of keeping
them.

What a backward pass needs of `x @ w.double()` is the widened weight. Kept for every layer, that is
a second model in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final
from weakref import WeakValueDictionary

import torch
from torch import Tensor

Maker = Callable[[], Tensor]
_made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def made_by(maker: Maker) -> Tensor:
    """The tensor that `maker` makes, remembered for as long as it lives together with how it is
    made.
    """
    made = maker()
    made._attncheck_maker = maker  # type: ignore[attr-defined]
    _made[made.untyped_storage().data_ptr()] = made
    return made


@final
class Rebuilding(torch.autograd.graph.saved_tensors_hooks):
    """While active, the graph holds of a tensor from `made_by` only how to make it."""

    def __init__(self) -> None:
        super().__init__(_packed, _unpacked)


def _packed(saved: Tensor) -> Any:
    made = _made.get(saved.untyped_storage().data_ptr())
    if made is None:
        return saved
    maker = made._attncheck_maker  # type: ignore[attr-defined]
    return maker, saved.size(), saved.stride(), saved.storage_offset()


def _unpacked(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    maker, size, stride, offset = packed
    with torch.no_grad():
        again: Tensor = maker().as_strided(size, stride, offset)
    return again
