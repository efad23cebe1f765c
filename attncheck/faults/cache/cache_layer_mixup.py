"""What it is
    A layer reads the keys and values that another layer stored.

How it looks
    The first call is right, everything after it is wrong from the layer concerned on.

Where it comes from
    `layer_idx` missing or set twice when layers are built in a loop, shared between blocks, or
    renumbered after layers were removed.

What to change
    Give every attention module its own `layer_idx`, counted over the layers that use the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attncheck.core.errors import CannotInject, Unsupported
from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, schedule, store_edits
from attncheck.model.caches import KEYS, VALUES, CachedTensor, key_values
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Swap what two layers have cached before each call on the cache."""
    pair = _pair_of_layers(store_edits.needs_keys(subject))
    if pair is None:
        raise CannotInject("no two layers cache tensors of one shape")

    def change(cache: Any) -> None:
        cached = {(each.layer, each.name): each.tensor for each in key_values(cache)}
        for name in KEYS + VALUES:
            first, second = cached.get((pair[0], name)), cached.get((pair[1], name))
            if first is not None and second is not None and first.shape == second.shape:
                kept = first.clone()
                first.copy_(second)
                second.copy_(kept)

    return store_edits.at_cache(subject, change)


def _pair_of_layers(cached: list[CachedTensor]) -> tuple[int, int] | None:
    first: dict[tuple[str, tuple[int, ...]], int] = {}
    for each in cached:
        if each.layer is None:
            continue
        other = first.setdefault((each.name, tuple(each.tensor.shape)), each.layer)
        if other != each.layer:
            return other, each.layer
    return None


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if store_edits.edits_store(forward):
        yield store_edits.stored("two first layers", lambda: _swap_first)
        yield store_edits.stored("each reads the next", lambda: _read_next)


def _swap_first(store: schedule.Store) -> None:
    """The first two layers whose stored tensors have one shape change places."""
    seen: dict[tuple[int, ...], int] = {}
    for layer, held in sorted(store.items()):
        other = seen.setdefault((held.first, *held.key_BGSD.shape), layer)
        if other != layer:
            one = store[other]
            one.key_BGSD, held.key_BGSD = held.key_BGSD, one.key_BGSD
            one.value_BGSD, held.value_BGSD = held.value_BGSD, one.value_BGSD
            return
    raise Unsupported("no two layers store tensors of one shape")


def _read_next(store: schedule.Store) -> None:
    layers = sorted(store)
    if len({store[layer].key_BGSD.shape for layer in layers}) > 1:
        raise Unsupported("the layers store tensors of several shapes")
    kept = [(store[layer].key_BGSD, store[layer].value_BGSD) for layer in layers]
    for number, layer in enumerate(layers):
        store[layer].key_BGSD, store[layer].value_BGSD = kept[(number + 1) % len(kept)]


FAULT = Fault(
    name="cache-layer-mixup", inject=inject, hypotheses={415: _hypotheses}, on_cache_only=True
)
