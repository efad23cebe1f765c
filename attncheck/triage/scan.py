"""Are all values finite, and how near do they come to the largest number of their precision: module
by module.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.hooks import hooked


@final
@dataclass(frozen=True)
class Overflow:
    """The first module whose output is not finite although what it was given is, and the largest
    value before it.
    """

    module: str
    lost: int
    largest: float
    limit: float
    dtype: str

    @property
    def words(self) -> str:
        """What happened, in a sentence."""
        return (
            f"{self.lost} values that are not finite leave `{self.module}` in {self.dtype}; the largest value before it is "
            f"{self.largest:.3g}, {self.dtype} ends at {self.limit:.3g}"
        )


@final
@dataclass
class Watch:
    """What the modules of one forward put out: the largest finite value so far, and the first that
    is not finite.
    """

    largest: float = 0.0
    first: tuple[str, int] | None = None
    seen: set[str] = field(default_factory=set)

    def note(self, name: str, given: Any, output: Any) -> None:
        """Look at one module's output."""
        self.seen.add(name)
        for tensor in _floating(output):
            finite = torch.isfinite(tensor)
            if (
                not bool(finite.all())
                and self.first is None
                and all(bool(torch.isfinite(t).all()) for t in _floating(given))
            ):
                self.first = (name, int((~finite).sum()))
            if self.first is None and tensor.numel():
                self.largest = max(self.largest, max_abs(tensor))


def _floating(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _floating(each)


def overflow(subject: Subject, rows: Tokens) -> Overflow | None:
    """The first module that loses a finite value in one plain forward in the present precision, or
    None.
    """
    watch = Watch()
    lost = 0
    for row in dict.fromkeys(rows):
        with watching(subject.model, watch):
            subject.passes.replay(ForwardSpec((row,)))
        lost += int((~torch.isfinite(subject.logits(ForwardSpec((row,))))).sum())
    if not lost:
        return None
    name, count = watch.first or ("the logits", lost)
    return Overflow(name, count, watch.largest, torch.finfo(subject.dtype).max, subject.dtype_name)


@contextlib.contextmanager
def watching(model: nn.Module, watch: Watch) -> Iterator[None]:
    """While active, the output of every module is looked at."""

    def hook(name: str) -> Any:
        return lambda module, given, output: watch.note(name, given, output)

    named = ((name, module) for name, module in model.named_modules() if name)
    with hooked(module.register_forward_hook(hook(name)) for name, module in named):
        yield
