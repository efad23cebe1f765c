"""Random faults in what a cache holds: edited between two calls, or as a layer reads it back.

Axes: B batch, G key/value heads, S stored positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.layers import layer_index
from attncheck.faults.engine.store_edits import at_cache
from attncheck.model.caches import KEYS, CachedTensor, key_values, states
from attncheck.run.random_faults.changes import Rotary, changed
from attncheck.run.random_faults.moment import Moment
from attncheck.run.random_faults.parts import EVERY, RandomFault
from attncheck.run.random_faults.sites import Sites

REPEATED = ("zero", "round")
"""Changes that are made before every call: again makes no difference. Others are made once."""


def layer_of(sites: Sites, module: str) -> int | None:
    """The number of the layer of a module; None for every module."""
    if module == EVERY:
        return None
    return layer_index(sites.subject.model.get_submodule(module), module)


def at_stored(sites: Sites, fault: RandomFault, moment: Moment) -> AbstractContextManager[None]:
    """Change what a filled cache holds before a call continues on it."""
    layer, done = layer_of(sites, fault.at), set[int]()
    kept: list[Any] = []  # an identity is one cache's only as long as that cache lives

    def edit(cache: Any) -> None:
        if not moment.is_when(fault.when) or id(cache) in done:
            return
        if fault.kind not in REPEATED:
            done.add(id(cache))
            kept.append(cache)
        last: dict[str, Tensor] = {}
        for each in _concerned(fault, cache):
            before = last.get(each.name)
            last[each.name] = each.tensor.clone()
            if layer in (None, each.layer):
                each.tensor.copy_(_changed(sites, fault, moment, each, before))

    return at_cache(sites.subject, edit)


def _concerned(fault: RandomFault, cache: Any) -> list[CachedTensor]:
    if fault.what == "states":
        return states(cache)
    cache = getattr(cache, "self_attention_cache", cache)
    wanted = fault.what.removeprefix("stored-")
    return [
        each
        for each in key_values(cache)
        if ("keys" if each.name in KEYS else "values") in wanted.split("+")
    ]


def _changed(
    sites: Sites, fault: RandomFault, moment: Moment, each: CachedTensor, before: Tensor | None
) -> Tensor:
    tensor = each.tensor
    if fault.what == "states":
        flat = tensor.reshape(tensor.shape[0], 1, 1, -1)
        other = None if before is None else before.reshape(before.shape[0], 1, 1, -1)
        nowhere = torch.zeros(1, dtype=torch.long, device=tensor.device)
        return changed(fault, flat, nowhere, other=other).reshape(tensor.shape)
    slots = tensor.shape[2]
    first = 0 if moment.static else max(0, moment.before - slots)
    positions_S = first + torch.arange(slots, device=tensor.device)
    return changed(fault, tensor, positions_S, _rotary(sites, each.layer), before)


@contextlib.contextmanager
def each_update(sites: Sites, fault: RandomFault, moment: Moment) -> Iterator[None]:
    """Change the keys and values that a layer reads back as it adds its own to the library's
    cache. What the cache holds stays right.
    """
    from transformers import Cache

    original, layer = Cache.update, layer_of(sites, fault.at)

    def update(
        cache: Any, keys: Tensor, values: Tensor, layer_idx: int, *rest: Any, **more: Any
    ) -> Any:
        found = dict(
            zip(
                ("keys", "values"),
                original(cache, keys, values, layer_idx, *rest, **more),
                strict=True,
            )
        )
        before, concerned = dict(moment.seen), layer in (None, layer_idx)
        moment.seen.update(found)
        if cache is moment.cache and concerned and moment.is_when(fault.when):
            for what in fault.what.split("+"):
                found[what] = _read(sites, fault, moment, found[what], layer_idx, before.get(what))
        return found["keys"], found["values"]

    Cache.update = update
    try:
        yield
    finally:
        Cache.update = original


def _read(
    sites: Sites,
    fault: RandomFault,
    moment: Moment,
    states_BGSD: Tensor,
    layer: int,
    before: Tensor | None,
) -> Tensor:
    slots = states_BGSD.shape[2]
    first = max(0, moment.before + moment.new - slots)
    positions_S = first + torch.arange(slots, device=states_BGSD.device)
    return changed(fault, states_BGSD, positions_S, _rotary(sites, layer), before)


def _rotary(sites: Sites, layer: int | None) -> Rotary | None:
    found = (each for name, each in sites.rotary.items() if layer_of(sites, name) == layer)
    return next(found, None)
