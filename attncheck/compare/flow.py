"""Every value that a forward computes, kept so that it can be found in another model's forward.

Two models name and cut their modules differently, yet the same values flow through them. A value is
kept as a fingerprint that does not depend on its layout: how many numbers it holds, and the sums of
their powers. Heads may stand before or after positions, and a fused projection may be split later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.numerics.hooks import hooked

KEPT_BYTES = 512 << 20
"""How many bytes of values a tape keeps beside their fingerprints."""


@final
@dataclass(frozen=True, eq=False)
class Value:
    """One value on a tape: its place in the order of execution, the innermost module that computed
    it, whether that module returned it, and the numbers where they were kept.
    """

    place: int
    module: str
    returned: bool
    kept: Tensor | None

    @cached_property
    def ordered(self) -> Tensor:
        """The numbers in ascending order."""
        return torch.empty(0) if self.kept is None else self.kept.flatten().sort().values

    def holds(self, value: Tensor, slack: float) -> bool:
        """Whether these are the same numbers in any order: sums alone let small errors cancel."""
        if self.kept is None:
            return True
        right = value.double().flatten().sort().values
        return float((self.ordered - right).abs().max()) <= slack * float(right.abs().max())


@final
@dataclass(eq=False)
class FlowTape:
    """The values of one forward in the order of execution."""

    least: int
    noting: bool = False
    values: list[Value] = field(default_factory=list)
    _prints: dict[int, list[tuple[Tensor, Value]]] = field(default_factory=dict)
    _stacked: dict[int, Tensor] = field(default_factory=dict)
    _bytes: int = 0

    def note(self, value: Tensor, module: str, returned: bool = False) -> None:
        """Keep one value, unless it is no floating point or smaller than `least` numbers."""
        if not value.is_floating_point() or value.numel() < self.least or value.is_meta:
            return
        kept = None
        if self._bytes < KEPT_BYTES:
            kept = value.detach().to("cpu", torch.float64, copy=True)
            self._bytes += kept.nbytes
        entry = Value(len(self.values), module, returned, kept)
        self.values.append(entry)
        self._prints.setdefault(value.numel(), []).append((fingerprint(value), entry))

    def find(self, value: Tensor, slack: float) -> list[Value]:
        """The first value that holds the same numbers up to a relative error, if any."""
        size = value.numel()
        entries = self._prints.get(size)
        if not entries:
            return []
        if len(self._stacked.get(size, ())) != len(entries):
            self._stacked[size] = torch.stack([each for each, _ in entries])
        wanted = fingerprint(value)
        limit = slack * wanted[LIMITS].clamp_min(1e-300) * torch.tensor(POWERS)
        close_N = ((self._stacked[size] - wanted).abs() <= limit).all(-1)
        close = [entries[number][1] for number in close_N.nonzero().flatten().tolist()]
        return next(([each] for each in close if each.holds(value, slack)), [])

    def factors(self, value: Tensor, slack: float) -> list[float]:
        """The factors other than 1 by which values of this tape are multiples of a value."""
        entries = self._prints.get(value.numel(), ())
        own, found = fingerprint(value), []
        for print_, _ in entries:
            factor = float(print_[1] / own[1].clamp_min(1e-300))
            if not 0 < factor < 1e6 or (abs(factor - 1) < 10 * slack and print_[3] * own[3] > 0):
                continue
            sign = 1.0 if float(print_[3] * own[3]) > 0 else -1.0
            powers = torch.tensor(
                [sign * factor, factor, factor**2, sign * factor**3, factor**3, factor**4]
            )
            limit = slack * own[LIMITS] * powers.abs() * torch.tensor(POWERS)
            if bool(((print_ - own * powers).abs() <= limit).all()):
                found.append(sign * factor)
        return list(dict.fromkeys(found))

    def after(self, place: int, size: int) -> list[Value]:
        """The first values of so many numbers from a place on that were kept."""
        values = [each for _, each in self._prints.get(size, ()) if each.kept is not None]
        return [each for each in values if each.place >= place][:MOST]


MOST = 128
"""How many values of one size are looked at behind a place."""
POWERS = (1.0, 1.0, 2.0, 3.0, 3.0, 4.0)
LIMITS = [1, 1, 2, 4, 4, 5]


def fingerprint(value: Tensor) -> Tensor:
    """Sums of x, |x|, x², x³, |x|³ and x⁴ in float64: the same for every order of the numbers."""
    x = value.detach().reshape(-1).to("cpu", torch.float64)
    size = x.abs()
    square = x * x
    sums = (x, size, square, x * square, size * square, square * square)
    return torch.stack([each.sum() for each in sums])


@final
class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what every operator returns, also those inside composite ones."""

    def __init__(self, tape: FlowTape, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.stack = tape, stack

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.tape.noting:
            return result
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor):
                self.tape.note(each, self.stack[-1])
        return result


@contextlib.contextmanager
def taped(model: nn.Module, least: int) -> Iterator[FlowTape]:
    """While active, keep every value of at least `least` numbers that the model computes.

    Fused attention is computed step by step meanwhile, so that its weights can be seen.
    """
    tape, stack = FlowTape(least), [""]

    def enter(name: str) -> Callable[..., None]:
        return lambda module, args: stack.append(name)

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            while len(stack) > 1 and stack.pop() != name:
                pass
            for each in output if isinstance(output, (tuple, list)) else (output,):
                if isinstance(each, Tensor):
                    tape.noting = True  # what a hook computes is no value of the model
                    tape.note(each, name, returned=True)
                    tape.noting = False

        return hook

    modules = [(name, each) for name, each in model.named_modules() if name]
    hooks = [each.register_forward_pre_hook(enter(name)) for name, each in modules]
    hooks += [each.register_forward_hook(leave(name)) for name, each in modules]
    with hooked(hooks), sdpa_kernel(SDPBackend.MATH), _Recording(tape, stack):
        yield tape
