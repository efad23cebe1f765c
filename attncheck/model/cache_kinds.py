"""Making caches of every kind that the library offers, and the operations that beam search and
rollback use on them.

Axes: B batch, G key/value heads, S cached positions, D head width.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from attncheck.core.errors import Unsupported, first_line
from attncheck.model.caches import KEYS, key_values
from attncheck.model.compat import text_config
from attncheck.model.placement import input_device

SPARE = 5
"""Slots that a static cache has beyond what is fed: a model that takes the buffer's end for the
newest token shows it.
"""

LONG = 136
"""Slots to spare where a buffer is made for a whole answer beforehand: more than two blocks of 64
that nothing was written to.
"""

REFUSALS = (
    TypeError,
    ValueError,
    ImportError,
    AttributeError,
    NotImplementedError,
    KeyError,
    RuntimeError,
    StopIteration,
)


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


def _long_static(config: Any, **size: Any) -> Any:
    return _static(config, spare=LONG, **size)


def _offloaded(config: Any, **size: Any) -> Any:
    return transformers.DynamicCache(config=config, offloading=True)


def _static_offloaded(config: Any, **size: Any) -> Any:
    return _static(config, offloading=True, **size)


def _quantised(config: Any, **size: Any) -> Any:
    for backend in ("quanto", "hqq"):
        try:
            return transformers.QuantizedCache(backend=backend, config=config)
        except ImportError:
            continue
    return transformers.QuantizedCache(backend="fp8", config=config)


KINDS: dict[str, Callable[..., Any]] = {
    "dynamic": _dynamic,
    "static": _static,
    "long static": _long_static,
    "offloaded": _offloaded,
    "static offloaded": _static_offloaded,
    "quantised": _quantised,
}


def new_cache(kind: str, model: Any, *, rows: int, length: int, dtype: torch.dtype) -> Any:
    """An empty cache of a kind of `KINDS` for `rows` rows of `length` tokens.

    Raises:
        Unsupported: this release, this model or this machine has no such cache.
    """
    if "static" in kind and getattr(model, "_supports_static_cache", True) is False:
        raise Unsupported(f"{type(model).__name__} declares that it takes no static cache")
    config = getattr(model, "config", None)
    device = input_device(model)
    if "offloaded" in kind and device.type == "cpu":
        raise Unsupported(
            "offloading moves layers between an accelerator and the host: the model runs on the host"
        )
    try:
        made = KINDS[kind](
            text_config(config), rows=rows, length=length, dtype=dtype, device=device
        )
    except REFUSALS as error:
        raise Unsupported(
            f"a {kind} cache for {type(model).__name__}: {first_line(error)}"
        ) from error
    return with_cross_attention(made) if getattr(config, "is_encoder_decoder", False) else made


def with_cross_attention(own: Any) -> Any:
    """A decoder's cache beside one for what it reads of the encoder: both in one would mix the two."""
    return transformers.EncoderDecoderCache(own, transformers.DynamicCache())


def self_attention(cache: Any) -> Any:
    """The part of a cache that holds the decoder's own keys and values."""
    return getattr(cache, "self_attention_cache", cache)


def send_through(filled: Any, store: Any) -> None:
    """Send every key and value of a filled cache through another one's storage and back: what a
    quantised cache keeps of them.

    Raises:
        Unsupported: the tensors cannot be paired by layer, or the store refuses them.
    """
    held: dict[int, dict[str, Tensor]] = {}
    store = self_attention(store)
    for each in key_values(self_attention(filled)):
        held.setdefault(each.layer or 0, {})["key" if each.name in KEYS else "value"] = each.tensor
    if not held or any(len(pair) != 2 for pair in held.values()):
        raise Unsupported("the cache holds no pairs of keys and values")
    for layer, pair in sorted(held.items()):
        key_BGSD, value_BGSD = pair["key"], pair["value"]
        try:
            store.update(key_BGSD, value_BGSD, layer)
            back = store.update(key_BGSD[:, :, -1:], value_BGSD[:, :, -1:], layer)
        except REFUSALS as error:
            raise Unsupported(f"{type(store).__name__}.update: {first_line(error)}") from error
        key_BGSD.copy_(back[0][:, :, :-1])
        value_BGSD.copy_(back[1][:, :, :-1])


def may_crop(cache: Any) -> None:
    """Prepare a cache for a later `crop`: caches with windows must be told to keep what they would
    drop.
    """
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()


def crop(cache: Any, remove: int) -> None:
    """Forget the newest `remove` tokens.

    Raises:
        Unsupported: the cache cannot be rolled back, and says so.
    """
    if not hasattr(cache, "crop") or getattr(cache, "is_croppable", True) is False:
        raise Unsupported(f"{type(cache).__name__} of this model cannot be cropped")
    try:
        cache.crop(-remove)
    except REFUSALS as error:
        raise Unsupported(f"{type(cache).__name__}.crop: {first_line(error)}") from error


def rearrange(cache: Any, how: str, index: tuple[int, ...], device: torch.device) -> None:
    """Beam search's operations on the rows of a cache: afterwards its row i is what row `index[i]`
    was.

    `how` is `reorder_cache`, `batch_select_indices` or `batch_repeat_interleave` (two of each row).

    Raises:
        Unsupported: this cache has no such operation, or refuses it.
    """
    method = getattr(cache, how, None)
    if method is None:
        raise Unsupported(f"{type(cache).__name__} has no `{how}`")
    try:
        method(
            index.count(index[0])
            if how == "batch_repeat_interleave"
            else torch.tensor(index, device=device)
        )
    except REFUSALS as error:
        raise Unsupported(f"{type(cache).__name__}.{how}: {first_line(error)}") from error


def copied(cache: Any) -> Any:
    """A deep copy, as servers make one for each continuation of a shared prefix.

    Raises:
        Unsupported: the cache cannot be copied.
    """
    try:
        return copy.deepcopy(cache)
    except REFUSALS as error:
        raise Unsupported(f"copying {type(cache).__name__}: {first_line(error)}") from error


def own_cache(model: nn.Module, rows: int, dtype: torch.dtype) -> Any:
    """An empty cache for `rows` rows, as generate() would hand it in.

    Raises:
        Unsupported: the library can make none for this model.
    """
    device = input_device(model)
    config = text_config(getattr(model, "config", None))
    offered = {
        "config": config,
        "batch_size": rows,
        "max_batch_size": rows,
        "dtype": dtype,
        "device": device,
    }
    for kind in _classes(type(model).__module__):
        wanted = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
        if "config" in wanted and ("batch_size" in wanted or "max_batch_size" in wanted):
            return kind(**{name: value for name, value in offered.items() if name in wanted})
    return new_cache("dynamic", model, rows=rows, length=0, dtype=dtype)


def _classes(home: str) -> list[type]:
    found = vars(sys.modules[home]).values() if home in sys.modules else ()
    return [
        each
        for each in found
        if isinstance(each, type) and each.__name__.endswith("Cache") and each.__module__ == home
    ]
