"""Faults of how far back a layer reads.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import allowed_BHTS, at_arguments, at_kernel, with_allowed
from attncheck.judge.layers import watching
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.subject import Subject


@final
@dataclass(frozen=True)
class Window:
    """Which modules have a window of `size` keys, the query's own included, and which masks they
    are handed.
    """

    modules: frozenset[int]
    size: int
    masks: tuple[Any, ...]


@final
@dataclass(frozen=True)
class _Hiding:
    """A module that hides past keys from `size` on, and whether it hides all of those and no other."""

    module: int
    size: int
    is_window: bool
    mask: Any


@final
@dataclass
class _Asked:
    """What the caller hides: padding, as real_BS, or documents from each other, which no fault of a
    window may undo.
    """

    real_BS: Tensor | None = None
    documents: bool = False


def _own(allowed: Tensor) -> Tensor:
    """(…, T, 1): the newest key of each query, its own."""
    keys_S = torch.arange(allowed.shape[-1], device=allowed.device)
    return torch.where(allowed, keys_S, -1).amax(-1, keepdim=True)


def _distance(allowed: Tensor) -> Tensor:
    """(…, T, S): how far before the query a key lies; negative after it."""
    return _own(allowed) - torch.arange(allowed.shape[-1], device=allowed.device)


def _real(allowed: Tensor, spec: _Asked) -> Tensor:
    """The keys that are no padding: the mask ends with the newest one, or a buffer goes on behind
    it.
    """
    if spec.real_BS is None:
        return torch.ones_like(allowed)
    total = allowed.shape[-1]
    real_BS = spec.real_BS[:, -total:].bool()
    real_BS = torch.nn.functional.pad(real_BS, (0, total - real_BS.shape[1]))
    return real_BS[:, None, None, :].expand(allowed.shape)


def _look(subject: Subject, tokens: Tokens) -> Window:
    """The window that kernel calls of one plain forward show; other shapes, such as chunks, where
    none has a window's.

    Raises:
        CannotPlant: none of them hides past keys.
    """
    seen: list[_Hiding] = []

    def watch(call: AttentionCall) -> Any:
        allowed = allowed_BHTS(call)
        distance = _distance(allowed)
        hidden = (distance >= 0) & ~allowed
        if bool(hidden.any()) and allowed.shape[-1] == allowed.shape[-2]:
            size = int(distance[hidden].min())
            seen.append(
                _Hiding(id(call.module), size, torch.equal(hidden, distance >= size), call.mask)
            )
        return call.run()

    subject.can.watch.require(CannotInject)
    with watching(subject, watch), torch.no_grad():
        subject.passes.call(tokens, use_cache=False)
    if not seen:
        raise CannotInject("no layer hides past keys within the input's length")
    found = [each for each in seen if each.is_window] or seen
    return Window(
        frozenset(each.module for each in found),
        min(each.size for each in found),
        tuple(each.mask for each in found),
    )


def _windowed(subject: Subject) -> Window:
    window = _look(subject, subject.inputs.tokens)
    other = _look(subject, (subject.inputs.other(subject.inputs.row),))
    if len(window.masks) != len(other.masks) or not any(
        map(torch.equal, window.masks, other.masks)
    ):
        raise CannotInject(
            "the layers that hide past keys choose them by content: there is no window"
        )
    return window


@contextlib.contextmanager
def _at_windows(
    subject: Subject, change: Callable[[AttentionCall, Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """`change` gets a call, its readable keys and those that are no padding, and returns the
    readable ones of the fault.
    """
    spec = _Asked()

    def note(call: dict[str, Any]) -> dict[str, Any]:
        mask, positions = (
            call.get(name or "")
            for name in (subject.forward_adapter.mask_name, subject.forward_adapter.positions_name)
        )
        restart = (
            isinstance(positions, Tensor)
            and mask is None
            and bool((positions.diff(dim=-1) <= 0).any())
        )
        spec.real_BS = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
        spec.documents = restart or (isinstance(mask, Tensor) and mask.ndim == 4)
        return call

    def handler(call: AttentionCall) -> Any:
        allowed = allowed_BHTS(call)
        if spec.documents:
            return call.run()
        changed = change(call, allowed, _real(allowed, spec))
        return (call if torch.equal(changed, allowed) else with_allowed(call, changed)).run()

    with at_arguments(subject, note), at_kernel(subject, handler):
        yield


def window_off_by_one(subject: Subject) -> contextlib.AbstractContextManager[None]:
    """A window reads one key more than it should: `>=` for `>`."""
    window = _windowed(subject)

    def change(call: AttentionCall, allowed: Tensor, real: Tensor) -> Tensor:
        inside = id(call.module) in window.modules
        return allowed | (real & (_distance(allowed) == window.size)) if inside else allowed

    return _at_windows(subject, change)


def window_ignored(subject: Subject) -> contextlib.AbstractContextManager[None]:
    """Every layer reads the whole past, whatever its window."""
    window = _windowed(subject)

    def change(call: AttentionCall, allowed: Tensor, real: Tensor) -> Tensor:
        inside = id(call.module) in window.modules
        return allowed | (real & (_distance(allowed) >= window.size)) if inside else allowed

    return _at_windows(subject, change)


def window_layers_swapped(subject: Subject) -> contextlib.AbstractContextManager[None]:
    """Layers with a window read everything that their cache holds, the others get the window."""
    window = _windowed(subject)
    if not _others(subject, window):
        raise CannotInject("every layer has a window: there is nothing to swap")

    def change(call: AttentionCall, allowed: Tensor, real: Tensor) -> Tensor:
        far = _distance(allowed) >= window.size
        return allowed | (real & far) if id(call.module) in window.modules else allowed & ~far

    return _at_windows(subject, change)


def _others(subject: Subject, window: Window) -> set[int]:
    """The modules that attend without a window."""
    seen: set[int] = set()

    def watch(call: AttentionCall) -> Any:
        seen.add(id(call.module))
        return call.run()

    with watching(subject, watch):
        subject.passes.replay(ForwardSpec(subject.inputs.tokens))
    return seen - window.modules
