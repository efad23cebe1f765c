"""Faults of sliding windows: which layers have one, changing it, and predicting the change.

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
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import injection
from attncheck.faults.engine.hypothesis import Hypothesis, WrongForward, words
from attncheck.faults.engine.injection import at_arguments, at_kernel
from attncheck.faults.engine.trusted import Change
from attncheck.judge.config_spec import AttentionSpan
from attncheck.model.subject import Subject


@final
@dataclass(frozen=True)
class Windows:
    """The modules with a window of `size` keys, the query's own included, and their masks."""

    modules: frozenset[int]
    size: int
    masks: tuple[Any, ...]


@final
@dataclass(frozen=True)
class _Hiding:
    """A module that hides past keys from distance `size` on; `is_window` says that it hides all."""

    module: int
    size: int
    is_window: bool
    mask: Any


def distance(allowed: Tensor) -> Tensor:
    """(…, T, S): how far before its query each key lies; negative after it.

    A query's own key is the newest that it reads.
    """
    keys_S = torch.arange(allowed.shape[-1], device=allowed.device)
    return torch.where(allowed, keys_S, -1).amax(-1, keepdim=True) - keys_S


def windows_of(subject: Subject) -> Windows:
    """The windows that the attention calls of a plain forward show.

    Raises:
        CannotInject: no layer hides past keys, or which ones it hides depends on the tokens.
    """
    found = _windows(list(map(_hiding, injection.plain_calls(subject))))
    changed = (subject.inputs.other(subject.inputs.row),)
    other = _windows(subject.record_calls(changed, _hiding))
    if len(found.masks) != len(other.masks) or not any(map(torch.equal, found.masks, other.masks)):
        raise CannotInject(
            "the layers that hide past keys choose them by content: there is no window"
        )
    return found


def _windows(calls: list[_Hiding | None]) -> Windows:
    hiding = [each for each in calls if each is not None]
    if not hiding:
        raise CannotInject("no layer hides past keys within the input's length")
    # Chunked attention hides keys at other distances too; its smallest distance serves as a size.
    found = [each for each in hiding if each.is_window] or hiding
    return Windows(
        frozenset(each.module for each in found),
        min(each.size for each in found),
        tuple(each.mask for each in found),
    )


def _hiding(call: AttentionCall) -> _Hiding | None:
    allowed = allowed_BHTS(call, CannotInject)
    if allowed.shape[-1] != allowed.shape[-2]:
        return None
    apart = distance(allowed)
    hidden = (apart >= 0) & ~allowed
    if not bool(hidden.any()):
        return None
    size = int(apart[hidden].min())
    return _Hiding(id(call.module), size, torch.equal(hidden, apart >= size), call.mask)


@final
@dataclass
class _Caller:
    """What the caller hides and no fault of a window may show: padding, and other documents."""

    real_BS: Tensor | None = None
    documents: bool = False

    def real(self, allowed: Tensor) -> Tensor:
        """The keys that are no padding; slots behind the end of the mask are unused."""
        if self.real_BS is None:
            return torch.ones_like(allowed)
        total = allowed.shape[-1]
        real_BS = self.real_BS[:, -total:].bool()
        real_BS = torch.nn.functional.pad(real_BS, (0, total - real_BS.shape[1]))
        return real_BS[:, None, None, :].expand(allowed.shape)


@contextlib.contextmanager
def at_windows(
    subject: Subject, change: Callable[[AttentionCall, Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """Change readable keys; `change` gets a call, its readable and its unpadded keys."""
    caller = _Caller()

    def note(call: dict[str, Any]) -> dict[str, Any]:
        adapter = subject.forward_adapter
        mask, positions = call.get(adapter.mask_name or ""), call.get(adapter.positions_name or "")
        caller.real_BS = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
        restarts = isinstance(positions, Tensor) and bool((positions.diff(dim=-1) <= 0).any())
        caller.documents = (mask is None and restarts) or (
            isinstance(mask, Tensor) and mask.ndim == 4
        )
        return call

    def handler(call: AttentionCall) -> Any:
        if caller.documents:
            return call.run()
        allowed = allowed_BHTS(call, CannotInject)
        changed = change(call, allowed, caller.real(allowed))
        # An unchanged call keeps its own mask, and with it the path that its kernel takes.
        return (call if torch.equal(changed, allowed) else with_allowed(call, changed)).run()

    with at_arguments(subject, note), at_kernel(subject, handler):
        yield


def widened(
    subject: Subject, chosen: Callable[[Tensor, int], Tensor]
) -> contextlib.AbstractContextManager[None]:
    """Let layers with a window read more; `chosen` picks keys by distance and window size."""
    windows = windows_of(subject)

    def change(call: AttentionCall, allowed: Tensor, real: Tensor) -> Tensor:
        if id(call.module) not in windows.modules:
            return allowed
        return allowed | (real & chosen(distance(allowed), windows.size))

    return at_windows(subject, change)


def respanned(
    forward: WrongForward, parameter: str, span: Callable[[AttentionSpan], AttentionSpan]
) -> Iterator[Hypothesis]:
    """Another span for each layer; the cache keeps all keys, or those of the right window."""
    yield Hypothesis(parameter, Change(span=span))
    if forward.chunked:
        said = words(parameter, "within what the cache keeps")
        yield Hypothesis(said, Change(span=span, only_held=True))
