"""The smallest dose of a fault: one head of one layer at one position, one slot of a cache.

A fault that changes attention calls, hidden states or cached tensors is given in this dose inside
`smallest`: all but one place keep what a healthy model computes. Faults that change the arguments
of a whole call have no smaller dose.

Axes: B batch, H query heads, G key/value heads, T query positions, S cached positions, D head
width, W hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from attncheck.attention.call import AttentionCall, Handler
from attncheck.core.errors import CannotInject
from attncheck.model.caches import CachedTensor

SlotChange = Callable[[CachedTensor, int], None]


@final
@dataclass
class Dose:
    """Whether a fault was given in the smallest dose: `taken` says that it has one."""

    taken: bool = False


_DOSE: ContextVar[Dose | None] = ContextVar("smallest_dose", default=None)


@contextlib.contextmanager
def smallest() -> Iterator[Dose]:
    """Faults that are injected inside are given in the smallest dose."""
    token = _DOSE.set(Dose())
    try:
        dose = _DOSE.get()
        assert dose is not None
        yield dose
    finally:
        _DOSE.reset(token)


def require_taken(dose: Dose) -> None:
    """Check that the fault that was injected has a smaller dose.

    Raises:
        CannotInject: it changes whole calls.
    """
    if not dose.taken:
        raise CannotInject("it changes whole calls, so that it has no smaller dose")


def _taken() -> bool:
    dose = _DOSE.get()
    if dose is not None:
        dose.taken = True
    return dose is not None


def dosed_handler(handler: Handler) -> Handler:
    """A handler of attention calls that acts as wanted: everywhere, or at one place."""
    return _OnePlace(handler) if _taken() else handler


@final
class _OnePlace:
    """Of a handler's outputs, takes one head of one layer at one position: in the middle of those
    that it changes first.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.module: object = None
        self.head = self.position = 0

    def __call__(self, call: AttentionCall) -> Any:
        healthy = call.copy().run()
        if self.module not in (None, call.module):
            return healthy
        start = call.key_BGSD.shape[2] - call.query_BHTD.shape[2]
        faulty_BTHD, healthy_BTHD = self.handler(call)[0], healthy[0]
        if faulty_BTHD.shape != healthy_BTHD.shape:
            return healthy
        if self.module is None:
            self._choose(call.module, (faulty_BTHD != healthy_BTHD).any(-1).any(0), start)
        at = self.position - start
        if self.module is None or not 0 <= at < healthy_BTHD.shape[1]:
            return healthy
        out_BTHD = healthy_BTHD.clone()
        out_BTHD[:, at, self.head] = faulty_BTHD[:, at, self.head]
        return (out_BTHD, *healthy[1:])

    def _choose(self, module: object, differ_TH: Tensor, start: int) -> None:
        places = differ_TH.nonzero().tolist()
        if places:
            at, self.head = places[len(places) // 2]
            self.module, self.position = module, start + at


def dosed_hidden(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of hidden states that acts as wanted: everywhere, or on one position of a row."""
    if not _taken():
        return change

    def one_position(hidden_BTW: Tensor) -> Tensor:
        changed_BTW, out_BTW = change(hidden_BTW), hidden_BTW.clone()
        at = hidden_BTW.shape[1] // 2
        out_BTW[:, at] = changed_BTW[:, at]
        return out_BTW

    return one_position


def dosed_slots(change: SlotChange) -> SlotChange:
    """A change of cached tensors that acts as wanted: on all that it changes, or on one slot of the
    first.
    """
    return _OneSlot(change) if _taken() else change


@final
class _OneSlot:
    """Of what a change makes of a cache, keeps the middle slot of the first tensor that differs."""

    def __init__(self, change: SlotChange) -> None:
        self.change = change
        self.path: tuple[str, ...] | None = None

    def __call__(self, each: CachedTensor, filled: int) -> None:
        before_BGSD = each.tensor.clone()
        self.change(each, filled)
        slots = (each.tensor != before_BGSD).transpose(1, 2).flatten(2).any(-1).any(0).nonzero()
        if not len(slots):
            return
        self.path = self.path or each.path
        slot = int(slots[len(slots) // 2])
        wrong_BGD = each.tensor[:, :, slot].clone()
        each.tensor.copy_(before_BGSD)
        if each.path == self.path:
            each.tensor[:, :, slot] = wrong_BGD
