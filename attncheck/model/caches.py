"""Looking into a cache of any kind: the tensors it holds, wherever it keeps them.

Axes: B batch, G key/value heads, S cached positions, D head width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_number

KEYS = ("keys", "key_cache", "key", "k", "k_cache")
VALUES = ("values", "value_cache", "value", "v", "v_cache")
PAIR = (KEYS[0], VALUES[0])
"""What the two tensors of a layer are in a cache of tuples, as releases before 4.36 had it."""
DEPTH = 5


@final
@dataclass(frozen=True)
class CachedTensor:
    """One tensor of a cache and the path of names and numbers that leads to it."""

    path: tuple[str, ...]
    tensor: Tensor

    @property
    def name(self) -> str:
        """The last word of the path that is not a number; in pairs per layer, what each part is."""
        words = [part for part in self.path if not part.isdigit()]
        if not words and len(self.path) == len(PAIR) and int(self.path[1]) < len(PAIR):
            return PAIR[int(self.path[1])]
        return words[-1] if words else ""

    @property
    def layer(self) -> int | None:
        """The number of the layer, where the path holds one."""
        return layer_number(self.path)

    @property
    def is_key_or_value(self) -> bool:
        """Whether this is a key_BGSD or value_BGSD tensor, as opposed to a recurrent state."""
        return self.name in KEYS + VALUES and self.tensor.ndim == 4

    @staticmethod
    def states_of(cache: Any) -> list[CachedTensor]:
        """`states`."""
        return states(cache)


def tensors_of(cache: Any, path: tuple[str, ...] = ()) -> Iterator[CachedTensor]:
    """Every floating tensor with content in a cache, in a fixed order."""
    if isinstance(cache, Tensor):
        if cache.is_floating_point() and cache.numel():
            yield CachedTensor(path, cache)
        return
    if len(path) > DEPTH:
        return
    for name, child in _children(cache):
        yield from tensors_of(child, (*path, name))


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, (list, tuple)):
        yield from ((str(index), child) for index, child in enumerate(node))
    elif isinstance(node, dict):
        yield from ((str(key), child) for key, child in node.items())
    elif hasattr(node, "__dict__") and not isinstance(node, type) and not callable(node):
        yield from (
            (name, child) for name, child in vars(node).items() if not name.startswith("__")
        )


def mapped(node: Any, change: Callable[[Tensor], Tensor], depth: int = DEPTH) -> Any:
    """A copy of a cache of any kind with every floating tensor changed."""
    if isinstance(node, Tensor):
        return change(node) if node.is_floating_point() else node
    children = dict(_children(node)) if depth else {}
    if not children:
        return node
    new = {name: mapped(child, change, depth - 1) for name, child in children.items()}
    if isinstance(node, tuple):
        return type(node)(*new.values()) if hasattr(node, "_fields") else tuple(new.values())
    copied = copy.copy(node)
    if isinstance(node, list):
        copied[:] = new.values()
    elif isinstance(node, dict):
        copied.update(zip(node, new.values(), strict=True))
    else:
        vars(copied).update(new)
    return copied


def key_values(cache: Any, heads: Collection[int] = ()) -> list[CachedTensor]:
    """The key and value tensors of a cache; as key_BGSD where `heads`, the numbers of heads that
    they may hold, tell the axes apart.
    """
    found = [each for each in tensors_of(cache) if each.is_key_or_value]
    return [
        replace(each, tensor=each.tensor.transpose(1, 2))
        if heads and heads_axis(each.tensor, heads) == 2
        else each
        for each in found
    ]


def heads_axis(tensor: Tensor, heads: Collection[int]) -> int:
    """The axis of a key or value tensor that counts heads, 1 or 2: models of one's own keep
    (B, S, G, D) as well. `heads` are the numbers of heads that it may hold.
    """
    return 2 if tensor.shape[1] not in heads and tensor.shape[2] in heads else 1


def states(cache: Any) -> list[CachedTensor]:
    """The recurrent and convolution states of a cache: what is neither key nor value."""
    return [each for each in tensors_of(cache) if not each.is_key_or_value]


def repeated_heads(stored_BGSD: Tensor) -> int:
    """How many heads of a stored tensor equal an earlier one."""
    heads = range(stored_BGSD.shape[1])
    return sum(
        any(torch.equal(stored_BGSD[:, head], stored_BGSD[:, other]) for other in range(head))
        for head in heads
    )
