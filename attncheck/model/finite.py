"""Numbers that are not finite, in weights and in what modules return: where the first one is.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.model.weights import ELSEWHERE, here
from attncheck.numerics.divergence import holes, max_abs_finite
from attncheck.numerics.hooks import hooked

MASK = (-math.inf,)
"""What a mask is made of: a module may take and return it."""


@final
@dataclass(frozen=True)
class NotFinite:
    """A tensor with numbers that are not finite: how many, and the first one with its index.

    `module` is the one that holds the tensor or returned it; empty where none did.
    """

    name: str
    count: int
    value: float
    index: tuple[int, ...]
    module: str = ""

    @property
    def words(self) -> str:
        """How many there are, and the first with its place: `3 values …, the first nan at [4]`."""
        values = f"{self.count} values that are" if self.count > 1 else "a value that is"
        return f"{values} not finite, the first {self.value} at {list(self.index)}"


def first_not_finite(
    name: str, value: Tensor, allowed: tuple[float, ...] = (), module: str = ""
) -> NotFinite | None:
    """What a tensor holds that is not finite, or None; these infinities are allowed."""
    if not value.numel() or all(map(math.isfinite, map(float, value.aminmax()))):
        return None  # the usual case, without a copy
    lost = ~torch.isfinite(value)
    for sign in allowed:
        lost &= value != sign
    count = int(lost.sum())
    if not count:
        return None
    index = tuple(int(each) for each in lost.nonzero()[0])
    return NotFinite(name, count, float(value[index]), index, module)


@torch.no_grad()
def bad_weights(model: nn.Module) -> list[NotFinite]:
    """The weights in memory that hold NaN or an infinity, and the buffers that hold NaN.

    An infinity in a buffer is a mask. Minus infinity in a vector is a choice: a bias or a sink of
    minus infinity switches off what it is added to.
    """
    weights, buffers = _floats(model.named_parameters()), _floats(model.named_buffers())
    found = [
        *(_held(name, value, MASK if value.ndim < 2 else ()) for name, value in weights),
        *(_held(name, value, (*MASK, math.inf)) for name, value in buffers),
    ]
    return [each for each in found if each is not None]


def _held(name: str, value: Tensor, allowed: tuple[float, ...]) -> NotFinite | None:
    return first_not_finite(name, value, allowed, module=name.rpartition(".")[0])


def _floats(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in memory that hold plain floating numbers: no quantized codes."""
    for name, value in named:
        if value.device.type == ELSEWHERE:
            continue
        held = here(value.detach())
        if type(held) is Tensor and held.is_floating_point() and held.itemsize > 1:
            yield name, held


@final
@dataclass
class Overflow:
    """The module outputs of a forward: the largest finite value, and the first module whose output
    is not finite although its input is.
    """

    dtype: torch.dtype
    largest: float = 0.0
    first: NotFinite | None = None

    def note(self, name: str, given: Any, output: Any) -> None:
        """Look at one module's output; after the first overflow nothing tells more."""
        if self.first is not None:
            return
        for tensor in _floating(output):
            lost = first_not_finite(name, tensor, MASK, module=name)
            if lost is None:
                self.largest = max(self.largest, max_abs_finite(tensor))
            elif all(first_not_finite(name, each, MASK) is None for each in _floating(given)):
                self.first = lost
                return

    def words(self, dtype: str) -> str:
        """What happened, in a sentence."""
        if self.first is None:
            return f"every value of a plain forward is finite in {dtype}"
        return (
            f"`{self.first.name}` returns {self.first.words} in {dtype}; the largest value before "
            f"it is {self.largest:.3g}, {dtype} ends at {torch.finfo(self.dtype).max:.3g}"
        )


def _floating(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _floating(each)


def overflow(subject: Subject, row: Row) -> Overflow | None:
    """Where a plain forward over one row loses finite values; None where its logits are finite."""
    spec = ForwardSpec((row,))
    logits_BTV = subject.logits(spec)
    if not holes(logits_BTV):
        return None
    found = Overflow(subject.dtype)

    def hook(name: str) -> Any:
        return lambda module, given, output: found.note(name, given, output)

    named = ((name, module) for name, module in subject.model.named_modules() if name)
    with hooked(module.register_forward_hook(hook(name)) for name, module in named):
        subject.passes.replay(spec)
    found.first = found.first or first_not_finite("the logits", logits_BTV)
    return found
