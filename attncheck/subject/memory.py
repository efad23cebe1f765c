"""What a call allocates: every new storage that an operator makes, counted on any device.

Axes: B batch, H query heads, G key/value heads, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@final
class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new storages while active, and the largest ones by shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {_storage(leaf) for leaf in tree_leaves((args, dict(kwargs or {}))) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and _storage(leaf) not in known:
                self.bytes += leaf.nbytes
                self.shapes.append(tuple(leaf.shape))
        return out


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
