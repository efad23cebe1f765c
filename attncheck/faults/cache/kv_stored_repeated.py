"""What it is
    The cache stores each key/value head once for every query head that shares it.

How it looks
    The output is right; the cache is as many times larger as query heads share a key/value head.

Where it comes from
    `repeat_kv` before `cache.update` instead of after it.

What to change
    Store the key/value heads as projected and repeat (or expand) them when they are read.

Axes: B batch, G key/value heads, S cached positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, injection, store_edits
from attncheck.model.cache_kinds import self_attention
from attncheck.model.caches import heads_axis, mapped, tensors_of
from attncheck.model.subject import Subject

STATES = 4
"""Keys and values are (B, G, S, D) wherever they are kept as plain tensors."""


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let `update` of the cache repeat every head before it stores, and return each once."""
    groups = max(2, (subject.facts.heads or 1) // (subject.facts.kv_heads or 1))
    store_edits.needs_keys(subject)
    kind = type(self_attention(injection.filled_cache(subject)))
    owner: Any = next((each for each in kind.__mro__ if "update" in vars(each)), None)
    if owner is None or owner is dict:
        with _between_calls(subject, groups):
            yield
        return
    original = owner.update

    def update(self: Any, key_BGSD: Tensor, value_BGSD: Tensor, *rest: Any, **options: Any) -> Any:
        repeated = (each.repeat_interleave(groups, 1) for each in (key_BGSD, value_BGSD))
        return tuple(each[:, ::groups] for each in original(self, *repeated, *rest, **options))

    owner.update = update
    try:
        yield
    finally:
        owner.update = original


@contextlib.contextmanager
def _between_calls(subject: Subject, groups: int) -> Iterator[None]:
    """The same in what a forward returns for the next one, whatever holds the tensors there."""
    name, kept = subject.forward_adapter.cache_name, injection.filled_cache(subject)
    if name is None or not any(True for _ in tensors_of(kept)):
        raise CannotInject("the model's own cache has no `update`")

    counts = {subject.facts.heads or 0, subject.facts.kv_heads or 0}
    held = (each.tensor for each in tensors_of(kept) if each.tensor.ndim == STATES)
    # told once: a ring may have as many slots as there are heads when each is stored twice
    axis = next((heads_axis(each, counts) for each in held), 1)

    def stored(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(groups, axis) if tensor.ndim == STATES else tensor

    def taken(tensor: Tensor) -> Tensor:
        if tensor.ndim != STATES:
            return tensor
        return tensor[:, :, ::groups] if axis == 2 else tensor[:, ::groups]

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        return {**call, name: mapped(call.get(name), taken)}

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return tree_map(lambda leaf: mapped(leaf, stored), output)

    with injection.at_arguments(subject, edit), subject.model.register_forward_hook(hook):
        yield


FAULT = Fault(name="kv-stored-repeated", inject=inject, on_cache_only=True)
