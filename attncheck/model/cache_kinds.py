"""Make caches of every kind that the library offers, and apply the operations that beam search and
rollback use on them.

Axes: B batch, G key/value heads, S cached positions, D head width.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from attncheck.core.errors import Unsupported, first_line
from attncheck.model.caches import KEYS, key_values
from attncheck.model.compat import config_of, text_config
from attncheck.model.facts import head_width
from attncheck.model.placement import input_device
from attncheck.model.refusal import REFUSALS, classified

SPARE = 5
"""Slots of a static cache beyond what is fed: they expose a model that takes the end of the buffer
for the newest token.
"""
GROUP = 64
"""Numbers that a quantized cache gives one scale by default."""
LONG = 136
"""Slots to spare where a buffer is made for a whole answer in advance: more than two unwritten
blocks of 64.
"""


def _dynamic(config: Any, **size: Any) -> Any:
    try:
        return transformers.DynamicCache(config=config)
    except TypeError:
        return transformers.DynamicCache()  # before 4.56 it knew no layers in advance


def _static(
    config: Any,
    *,
    rows: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    spare: int = SPARE,
    **offloading: bool,
) -> Any:
    try:
        return transformers.StaticCache(config=config, max_cache_len=length + spare, **offloading)
    except TypeError:
        # before 4.56 the buffers were made at once, and the number of rows had two names
        sizes = {"max_batch_size": rows, "batch_size": rows, "device": device, "dtype": dtype}
        return transformers.StaticCache(config=config, max_cache_len=length + spare, **sizes)


def _quantized(config: Any, **size: Any) -> Any:
    # the usual groups of 64 numbers divide no tensor of narrow heads and few tokens
    groups = {"q_group_size": math.gcd(GROUP, head_width(config) or GROUP)}
    for backend in ("quanto", "hqq"):
        try:
            return transformers.QuantizedCache(backend=backend, config=config, **groups)
        except ImportError:
            continue
    return transformers.QuantizedCache(backend="fp8", config=config)


KINDS: dict[str, Callable[..., Any]] = {
    "dynamic": _dynamic,
    "static": _static,
    "long static": lambda config, **size: _static(config, spare=LONG, **size),
    "offloaded": lambda config, **size: transformers.DynamicCache(config=config, offloading=True),
    "static offloaded": lambda config, **size: _static(config, offloading=True, **size),
    "quantised": _quantized,
}


def promised(kind: str, model: Any) -> bool:
    """Whether a model declares that it takes a kind of cache. A static one is declared by its class
    (under another name before 4.53); for every other kind the library is asked.
    """
    if "static" not in kind:
        return True
    old = getattr(model, "_supports_static_cache", False)
    return getattr(model, "_can_compile_fullgraph", old) is True


def new_cache(kind: str, model: Any, *, rows: int, length: int, dtype: torch.dtype) -> Any:
    """An empty cache of a kind of `KINDS` for `rows` rows of `length` tokens.

    Raises:
        Unsupported: this release, this model or this machine has no such cache.
    """
    name, config, device = type(model).__name__, config_of(model), input_device(model)
    if "offloaded" in kind and device.type == "cpu":
        raise Unsupported(
            "offloading moves layers between an accelerator and the host: "
            "the model runs on the host"
        )
    size = {"rows": rows, "length": length, "dtype": dtype, "device": device}
    try:
        made = KINDS[kind](text_config(config), **size)
    except REFUSALS as error:
        message = f"a {kind} cache for {name}: {first_line(error)}"
        raise classified(error, message, documented=promised(kind, model), option=True) from error
    if not getattr(config, "is_encoder_decoder", False):
        return made
    # the decoder's cache stands beside one for what it reads of the encoder: one would mix the two
    return transformers.EncoderDecoderCache(made, transformers.DynamicCache())


def own_cache(model: nn.Module, rows: int, dtype: torch.dtype) -> Any:
    """An empty cache for a model that makes none itself but leaves it to generate(): of the class
    that its own module defines, otherwise the library's dynamic one.

    Raises:
        Unsupported: the library can make none for this model.
    """
    offered = {
        "config": text_config(config_of(model)),
        "batch_size": rows,
        "max_batch_size": rows,
        "dtype": dtype,
        "device": input_device(model),
    }
    home = type(model).__module__
    for kind in list(vars(sys.modules[home]).values()) if home in sys.modules else ():
        if not (isinstance(kind, type) and kind.__name__.endswith("Cache")):
            continue
        wanted = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
        sized = "config" in wanted and ("batch_size" in wanted or "max_batch_size" in wanted)
        if kind.__module__ == home and sized:
            return kind(**{name: value for name, value in offered.items() if name in wanted})
    return new_cache("dynamic", model, rows=rows, length=0, dtype=dtype)


def self_attention(cache: Any) -> Any:
    """The part of a cache that holds the decoder's own keys and values."""
    return getattr(cache, "self_attention_cache", cache)


def send_through(filled: Any, store: Any, first: int | None = None) -> None:
    """Send every key and value of a filled cache through the storage of another cache and back:
    they come back as a quantized cache keeps them. Where the `first` positions come alone, it
    may take its scales from those.

    Raises:
        Unsupported: the tensors cannot be paired by layer, or the store refuses them.
    """
    pairs: dict[int, dict[str, Tensor]] = {}
    store = self_attention(store)
    for each in key_values(self_attention(filled)):
        pairs.setdefault(each.layer or 0, {})["key" if each.name in KEYS else "value"] = each.tensor
    if not pairs or any(len(pair) != 2 for pair in pairs.values()):
        raise Unsupported("the cache holds no pairs of keys and values")
    for layer, pair in sorted(pairs.items()):
        states = pair["key"], pair["value"]
        newest = [each[:, :, -1:] for each in states]
        whole = states[0].shape[2]
        for part in (slice(first), slice(whole if first is None else first, None)):
            given = [each[:, :, part] for each in states]
            if given[0].shape[2]:
                _attempt(store, "update", partial(store.update, *given, layer))
        # one more update returns what was stored, with the newest position once more
        back = _attempt(store, "update", partial(store.update, *newest, layer))
        for mine_BGSD, stored_BGSD in zip(states, back, strict=False):
            mine_BGSD.copy_(stored_BGSD[:, :, :-1])


def may_crop(cache: Any) -> None:
    """Prepare a cache for a later `crop`: caches with windows must keep what they would drop."""
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()


def crop(cache: Any, remove: int) -> None:
    """Forget the newest `remove` tokens.

    Raises:
        Unsupported: the cache cannot be rolled back, and says so.
    """
    if not hasattr(cache, "crop") or getattr(cache, "is_croppable", True) is False:
        raise Unsupported(f"{type(cache).__name__} of this model cannot be cropped")
    _attempt(cache, "crop", lambda: cache.crop(-remove))


def empty(cache: Any) -> None:
    """Forget every token, and what was read of an encoder.

    Raises:
        Unsupported: the cache has no `reset`.
    """
    if not callable(getattr(cache, "reset", None)):
        raise Unsupported(f"{type(cache).__name__} of this model cannot be reset")
    _attempt(cache, "reset", cache.reset)


OWN_REORDER = "_reorder_cache"
"""The method of a model that generate() prefers to the cache's own."""


def operation(how: str, model: Any) -> str:
    """The method that beam search calls for `how`: the model's own, if it has one to reorder."""
    return OWN_REORDER if how == "reorder_cache" and hasattr(model, OWN_REORDER) else how


def rearrange(cache: Any, how: str, index: tuple[int, ...], model: Any) -> Any:
    """The cache after beam search's operation on its rows: row i is the former row `index[i]`.

    `how` is `reorder_cache`, `batch_select_indices` or `batch_repeat_interleave` (two of each row).
    Where the model has a method of its own to reorder, that is what beam search calls.

    Raises:
        Unsupported: this cache has no such operation, or refuses it.
    """
    repeats = how == "batch_repeat_interleave"
    rows = torch.tensor(index, device=next(model.parameters()).device)
    if operation(how, model) == OWN_REORDER:
        return _attempt(cache, OWN_REORDER, lambda: getattr(model, OWN_REORDER)(cache, rows))
    method = getattr(cache, how, None)
    if method is None:
        raise Unsupported(f"{type(cache).__name__} has no `{how}`")
    _attempt(cache, how, lambda: method(index.count(index[0]) if repeats else rows))
    return cache


def copied(cache: Any) -> Any:
    """A deep copy, as servers make one for each continuation of a shared prefix.

    Raises:
        Unsupported: the cache cannot be copied.
    """
    try:
        return copy.deepcopy(cache)
    except REFUSALS as error:
        raise classified(error, f"copying {type(cache).__name__}: {first_line(error)}") from error


def _attempt(cache: Any, operation: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except REFUSALS as error:
        if isinstance(error, AttributeError) and error.name == operation:
            raise Unsupported(f"{type(error.obj).__name__} has no `{operation}`") from error
        message = f"{type(cache).__name__}.{operation}: {first_line(error)}"
        raise classified(error, message, option=True) from error
