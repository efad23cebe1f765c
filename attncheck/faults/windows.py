"""Faults of how far back a layer reads.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.errors import CannotPlant
from attncheck.faults.planting import allowed_BHTS, at_kernel, with_allowed
from attncheck.subject.attention import KernelCall, intercept
from attncheck.subject.inputs import Tokens
from attncheck.subject.subject import Subject


def _past(allowed: Tensor) -> Tensor:
    """What causality alone would allow, in the shape of `allowed`, the last key being the last query's own."""
    new, total = allowed.shape[-2:]
    return torch.ones_like(allowed).tril(total - new)


def _hides_past(call: KernelCall) -> bool:
    allowed = allowed_BHTS(call)
    return bool((_past(allowed) & ~allowed).any())


def _layer_masks(subject: Subject, tokens: Tokens) -> list[tuple[bool, Any]]:
    """For each kernel call of one forward: whether it hides past keys, and the mask that it is handed."""
    seen: list[tuple[bool, Any]] = []

    def watch(call: KernelCall) -> Any:
        seen.append((_hides_past(call), call.mask))
        return call.run()

    if subject.can.kernel is not None:
        raise CannotPlant(subject.can.kernel)
    with intercept(subject.model, watch), torch.no_grad():
        subject.passes.call(tokens, use_cache=False)
    return seen


def _windowed(subject: Subject) -> list[tuple[bool, Any]]:
    masks = _layer_masks(subject, subject.inputs.tokens)
    if not any(hides for hides, _ in masks):
        raise CannotPlant("no layer hides past keys within the input's length")
    others = _layer_masks(subject, (subject.inputs.other(subject.inputs.row),))
    if all(not torch.equal(one, two) for (hides, one), (_, two) in zip(masks, others, strict=True) if hides):
        raise CannotPlant("the layers that hide past keys choose them by content: there is no window")
    return masks


@contextlib.contextmanager
def window_off_by_one(subject: Subject) -> Iterator[None]:
    """A window reads one key more than it should: `>=` for `>`."""
    _windowed(subject)

    def handler(call: KernelCall) -> Any:
        allowed = allowed_BHTS(call)
        if _hides_past(call):
            older = torch.cat([allowed[..., 1:], allowed[..., -1:]], -1) & _past(allowed)
            call = with_allowed(call, allowed | older)
        return call.run()

    with at_kernel(subject, handler):
        yield


@contextlib.contextmanager
def window_ignored(subject: Subject) -> Iterator[None]:
    """Every layer reads the whole past, whatever its window."""
    _windowed(subject)

    def handler(call: KernelCall) -> Any:
        if _hides_past(call):
            call = with_allowed(call, _past(allowed_BHTS(call)))
        return call.run()

    with at_kernel(subject, handler):
        yield


@contextlib.contextmanager
def window_layers_swapped(subject: Subject) -> Iterator[None]:
    """Layers with a window read everything, the others get the window."""
    masks = _windowed(subject)
    if all(hides for hides, _ in masks):
        raise CannotPlant("every layer has a window: there is nothing to swap")
    window = next(mask for hides, mask in masks if hides)

    def handler(call: KernelCall) -> Any:
        allowed = allowed_BHTS(call)
        if _hides_past(call):
            call = with_allowed(call, _past(allowed))
        elif isinstance(window, Tensor) and window.shape[-2:] == allowed.shape[-2:]:
            call.mask = window
        return call.run()

    with at_kernel(subject, handler):
        yield
