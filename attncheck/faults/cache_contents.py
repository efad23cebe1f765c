"""Faults of a cache that is there and holds the wrong things: slots, layers, rows, precision,
rotation, roll-back.

Axes: B batch, G key/value heads, S cached positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import transformers
from torch import Tensor

from attncheck.core.errors import CannotInject, first_line
from attncheck.faults.engine.inject import at_arguments, cache_argument
from attncheck.model.cache_kinds import crop, may_crop, new_cache
from attncheck.model.caches import KEYS, VALUES, CachedTensor, key_values, tensors_of
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject

ROPE_BASE = 10000.0
TOO_MANY = 1
TRIED = 3
BFLOAT16_BITS = 8
FLOAT8_BITS = 4

Change = Callable[[Any], None]


def _before_each_call(subject: Subject, change: Change) -> AbstractContextManager[None]:
    """Change the contents of a handed-in cache that already holds tokens, before the model sees it."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        cache = cache_argument(subject, call)
        if cache is not None and next(tensors_of(cache), None) is not None:
            with torch.no_grad():
                change(cache)
        return call

    return at_arguments(subject, edit)


def _needs_keys(subject: Subject) -> list[CachedTensor]:
    held = key_values(subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True)))
    if not held:
        raise CannotInject("the cache holds no keys and values")
    return held


def _filled(cache: Any, tensor: Tensor) -> int:
    """How many slots of a cached tensor hold tokens: all of a growing cache, the first ones of a
    static buffer.
    """
    return min(tensor.shape[2], cached_length(cache) or tensor.shape[2])


def cache_stale(subject: Subject) -> AbstractContextManager[None]:
    """The newest slot still holds what the slot before it held: its token was never written."""
    _needs_keys(subject)

    def change(cache: Any) -> None:
        for each in key_values(cache):
            newest = _filled(cache, each.tensor) - 1
            each.tensor[:, :, newest] = each.tensor[:, :, max(0, newest - 1)]

    return _before_each_call(subject, change)


def cache_wrong_slot(subject: Subject) -> AbstractContextManager[None]:
    """Values lie one slot beside their keys."""
    _needs_keys(subject)

    def change(cache: Any) -> None:
        for each in key_values(cache):
            if each.name in VALUES:
                held = each.tensor[:, :, : _filled(cache, each.tensor)]
                held.copy_(held.roll(1, 2))

    return _before_each_call(subject, change)


def cache_layer_mixup(subject: Subject) -> AbstractContextManager[None]:
    """Two layers read each other's keys and values."""
    pair = _pair_of_layers(_needs_keys(subject))
    if pair is None:
        raise CannotInject("no two layers cache tensors of one shape")

    def change(cache: Any) -> None:
        held = {(each.layer, each.name): each.tensor for each in key_values(cache)}
        for name in KEYS + VALUES:
            first, second = held.get((pair[0], name)), held.get((pair[1], name))
            if first is not None and second is not None and first.shape == second.shape:
                kept = first.clone()
                first.copy_(second)
                second.copy_(kept)

    return _before_each_call(subject, change)


def _pair_of_layers(held: list[CachedTensor]) -> tuple[int, int] | None:
    first: dict[tuple[str, tuple[int, ...]], int] = {}
    for each in held:
        if each.layer is None:
            continue
        key = (each.name, tuple(each.tensor.shape))
        if key in first and first[key] != each.layer:
            return first[key], each.layer
        first.setdefault(key, each.layer)
    return None


def cache_reorder(subject: Subject) -> AbstractContextManager[None]:
    """Each row of a batch continues on the cache of the row before it."""

    def change(cache: Any) -> None:
        for each in tensors_of(cache):
            if each.tensor.ndim > 1 and each.tensor.shape[0] > 1:
                each.tensor.copy_(each.tensor.roll(1, 0))

    subject.can.steps_agree.require(CannotInject)
    row, length = subject.inputs.row, subject.inputs.length
    cache = subject.passes.cache(
        ForwardSpec((row, subject.inputs.other(row)), chunks=(length - 1, 1))
    )
    if next(tensors_of(cache), None) is None:
        raise CannotInject("the cache holds no tensors")
    return _before_each_call(subject, change)


def cache_low_precision(subject: Subject) -> AbstractContextManager[None]:
    """Keys and values are stored in fewer bits than the model computes in."""
    _needs_keys(subject)
    bits = BFLOAT16_BITS if subject.dtype.itemsize > torch.bfloat16.itemsize else FLOAT8_BITS

    def change(cache: Any) -> None:
        for each in key_values(cache):
            each.tensor.copy_(_rounded(each.tensor, bits))

    return _before_each_call(subject, change)


def _rounded(value: Tensor, bits: int) -> Tensor:
    """Numbers with `bits` bits of significand. By arithmetic: a cast would be promoted where hidden
    float32 is.
    """
    significand, exponent = torch.frexp(value)
    return torch.ldexp((significand * 2**bits).round() / 2**bits, exponent).to(value.dtype)


def key_rotated_twice(subject: Subject) -> AbstractContextManager[None]:
    """Keys that were stored rotated are rotated again when they are read."""
    held = [each for each in _needs_keys(subject) if each.name in KEYS]
    subject.can.reads_positions.require(CannotInject)
    if not held or any(each.tensor.shape[-1] % 2 for each in held):
        raise CannotInject("the cached keys have no even width to rotate")

    def change(cache: Any) -> None:
        for each in key_values(cache):
            if each.name in KEYS:
                each.tensor.copy_(_rotated(each.tensor))

    return _before_each_call(subject, change)


def _rotated(key_BGSD: Tensor) -> Tensor:
    """Every key turned by its slot number, halves paired as in the usual rotary embedding."""
    slots, width = key_BGSD.shape[-2:]
    speed_D = ROPE_BASE ** (
        -torch.arange(0, width, 2, device=key_BGSD.device, dtype=torch.float32) / width
    )
    angle_SD = torch.arange(slots, device=key_BGSD.device)[:, None] * speed_D
    cos_SD, sin_SD = angle_SD.cos().to(key_BGSD.dtype), angle_SD.sin().to(key_BGSD.dtype)
    left, right = key_BGSD.chunk(2, -1)
    return torch.cat([left * cos_SD - right * sin_SD, right * cos_SD + left * sin_SD], -1)


@contextlib.contextmanager
def cache_crop(subject: Subject) -> Iterator[None]:
    """Cropping the cache leaves one token too many."""
    owner = next((each for each in transformers.DynamicCache.__mro__ if "crop" in vars(each)), None)
    if owner is None:
        raise CannotInject("the library's cache has no `crop`")
    _needs_cropping(subject)
    original = owner.crop

    def crop(self: Any, length: int) -> None:
        # a negative number says how many to remove, a positive one (older releases) how many to
        # keep: + 1 keeps one more
        original(self, length + TOO_MANY)

    owner.crop = crop
    try:
        yield
    finally:
        owner.crop = original


def _needs_cropping(subject: Subject) -> None:
    """Raise where this model's cache cannot be rolled back and continued anyway, so that nothing
    would go wrong.
    """
    row, half = subject.inputs.row, subject.inputs.length // 2
    cache = new_cache(
        "dynamic", subject.model, rows=1, length=subject.inputs.length, dtype=subject.dtype
    )
    may_crop(cache)
    try:
        with torch.no_grad():
            for part in (row[:half], row[half : half + TRIED]):
                cache = subject.passes.call((part,), cache=cache, use_cache=True).cache
            crop(cache, TRIED)
            subject.passes.call((row[half:],), cache=cache, use_cache=True)
    except REFUSALS as error:
        raise CannotInject(
            f"the cache of this model cannot be rolled back and continued ({first_line(error)})"
        ) from error
