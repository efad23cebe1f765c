"""Faults of what is kept between calls.

Axes: B batch, G key/value heads, S cached positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from attncheck.attention.interface import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_arguments, at_kernel, cache_argument, repeats
from attncheck.model.caches import key_values, states
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def _before_each_call(
    subject: Subject, change: Callable[[Any], None]
) -> AbstractContextManager[None]:
    """Change the contents of a handed-in cache before the model sees it."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        cache = cache_argument(subject, call)
        if cache is not None:
            with torch.no_grad():
                change(cache)
        return call

    return at_arguments(subject, edit)


def _sample(subject: Subject) -> Any:
    """A filled cache of this model, to see what it is made of."""
    return subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True))


def cache_drops_token(subject: Subject) -> AbstractContextManager[None]:
    """The newest key/value slot of every layer is lost before each cached call."""
    if not key_values(_sample(subject)):
        raise CannotInject("the cache holds no keys and values")

    def change(cache: Any) -> None:
        # A static buffer is wider than what it holds, a sliding one narrower than what it has seen.
        for each in key_values(cache):
            each.tensor[:, :, min(cached_length(cache), each.tensor.shape[2]) - 1] = 0

    return _before_each_call(subject, change)


def state_dropped(subject: Subject) -> AbstractContextManager[None]:
    """Recurrent and convolution states start from zero in every call."""
    if not states(_sample(subject)):
        raise CannotInject("the cache holds no recurrent state")

    def change(cache: Any) -> None:
        for each in states(cache):
            each.tensor.zero_()

    return _before_each_call(subject, change)


@contextlib.contextmanager
def kv_stored_repeated(subject: Subject) -> Iterator[None]:
    """The cache stores every key/value head once for each query head that reads it."""
    groups = max(2, (subject.facts.heads or 1) // (subject.facts.kv_heads or 1))
    if not key_values(_sample(subject)):
        raise CannotInject("the cache holds no keys and values")
    original = DynamicCache.update

    def update(self: Any, key_BGSD: Tensor, value_BGSD: Tensor, *rest: Any, **options: Any) -> Any:
        repeated = (each.repeat_interleave(groups, 1) for each in (key_BGSD, value_BGSD))
        return tuple(each[:, ::groups] for each in original(self, *repeated, *rest, **options))

    DynamicCache.update = update
    try:
        yield
    finally:
        DynamicCache.update = original


def kv_repeat_copied(subject: Subject) -> AbstractContextManager[None]:
    """The kernel makes a physical copy of the whole cache for every query head, at every step."""
    subject.can.kernel.require(CannotInject)

    def handler(call: AttentionCall) -> Any:
        groups = max(2, repeats(call))
        call.key_BGSD = call.key_BGSD.repeat_interleave(groups, 1)[:, ::groups]
        call.value_BGSD = call.value_BGSD.repeat_interleave(groups, 1)[:, ::groups]
        return call.run()

    return at_kernel(subject, handler)
