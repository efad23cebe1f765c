"""Faults of the cache as edits: of the cache argument of a call, and of the trusted path's store.

Axes: B batch, G key/value heads, S stored positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine.dose import dosed_slots
from attncheck.faults.engine.hypothesis import Hypothesis, WrongForward
from attncheck.faults.engine.injection import at_arguments, cache_argument, filled_cache
from attncheck.faults.engine.schedule import Edit, Held, Store, scheduled_logits
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.caches import CachedTensor, key_values, tensors_of
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


@contextlib.contextmanager
def wrapped_method(kind: type, name: str, method: Callable[..., None]) -> Iterator[None]:
    """Replace a method of a class of caches, where it is defined, by `method(original, cache,
    *arguments)`.

    Raises:
        CannotInject: no class above has this method.
    """
    owner: Any = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is None:
        raise CannotInject(f"{kind.__name__} has no `{name}`")
    original = vars(owner)[name]

    def wrapped(cache: Any, *arguments: Any) -> None:
        method(original, cache, *arguments)

    setattr(owner, name, wrapped)
    try:
        yield
    finally:
        setattr(owner, name, original)


def at_cache(subject: Subject, change: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Change what a filled cache holds before each call that continues on it."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        cache = cache_argument(subject, call)
        if next(tensors_of(cache), None) is not None:
            with torch.no_grad():
                change(cache)
        return call

    return at_arguments(subject, edit)


def at_cached(
    subject: Subject, change: Callable[[CachedTensor, int], None]
) -> AbstractContextManager[None]:
    """Change each key and value tensor of a filled cache; `change` gets the number of filled slots.

    Raises:
        CannotInject: the cache holds no keys and values.
    """
    needs_keys(subject)
    change = dosed_slots(change)

    def edit(cache: Any) -> None:
        for each in key_values(cache):
            # All slots of a growing cache hold tokens, of a static buffer only the first ones; a
            # sliding cache has seen more tokens than it has slots.
            slots = each.tensor.shape[2]
            change(each, min(slots, cached_length(cache) or slots))

    return at_cache(subject, edit)


def needs_keys(subject: Subject) -> list[CachedTensor]:
    """The keys and values that the model caches for the main input.

    Raises:
        CannotInject: there are none.
    """
    found = key_values(filled_cache(subject))
    if not found:
        raise CannotInject("the cache holds no keys and values")
    return found


def edits_store(forward: WrongForward) -> bool:
    """Whether the trusted path has a store to edit: it attends in chunks and keeps no states."""
    return forward.chunked and forward.attends and not forward.trusted.keeps_states


def stored(parameter: str, edit: Callable[[], Edit]) -> Hypothesis:
    """A fault as an edit of the store, made anew for each prediction: some edits keep a memory."""

    def predict(trusted: Trusted, spec: ForwardSpec) -> Tensor:
        return scheduled_logits(trusted, spec, edit())

    return Hypothesis(parameter, predict=predict, without=_unedited)


def _unedited(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """What the same calls on the store give where nothing is changed in it."""
    return scheduled_logits(trusted, spec, lambda store: None)


def stored_everywhere(parameter: str, change: Callable[[Held], None]) -> Hypothesis:
    """A fault as the same change of what every layer has stored."""

    def edit(store: Store) -> None:
        for held in store.values():
            change(held)

    return stored(parameter, lambda: edit)
