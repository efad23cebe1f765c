"""The operations of a model's own code, one by one: what each returned in one forward, and in
another way to the same tokens.

An operation is known by the place in the code that runs it, the module and how often it ran. Where
both ways run the same operation, its two results must be equal at the same tokens. The first whose
arguments are equal and whose result is not is where the two part; the proof is the other forward
with the right result put there.

Axes: B batch, T tokens of one forward, F tokens of one call.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attncheck.numerics.as_written import AsWritten
from attncheck.numerics.hooks import hooked

MOST_BYTES = 256 << 20
"""So much is kept of one forward at most."""
OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))
"""Code of torch and of this tool is not the model's."""


class TooLarge(Exception):
    """A forward makes more than may be kept."""


@final
@dataclass(frozen=True)
class Place:
    """Where in the code an operation runs."""

    code: CodeType
    instruction: int

    @property
    def line(self) -> int:
        """The line of the file."""
        found = [line for at, line in _lines(self.code) if at <= self.instruction]
        return found[-1] if found else self.code.co_firstlineno

    @property
    def source(self) -> str:
        """File and line."""
        return f"{self.code.co_filename}:{self.line}"

    @property
    def text(self) -> str:
        """The expression; the line where this Python does not say which part of it."""
        positions = getattr(self.code, "co_positions", None)
        spans = list(positions()) if positions else []
        at = self.instruction // 2
        first, last, start, stop = spans[at] if at < len(spans) else (None,) * 4
        whole = linecache.getline(self.code.co_filename, self.line)
        if first is None or first != last or start is None or stop is None:
            return whole.strip()
        return whole.encode()[start:stop].decode(errors="replace").strip() or whole.strip()


def _lines(code: CodeType) -> Iterator[tuple[int, int]]:
    """(first instruction, line) of each stretch of a code."""
    for start, _, line in code.co_lines():
        if line is not None:
            yield start, line


Key = tuple[str, Place, int]
"""The module that runs, the place, and which of its results."""
Replace = Callable[["Operation"], "Tensor | None"]


@final
@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of one call of the model: the `number`-th of its key in this call."""

    key: Key
    call: int
    number: int
    result: Tensor
    arguments: tuple[int, ...]
    output: Tensor


@final
@dataclass
class Operations(AsWritten):
    """Keeps the operations of a run, in order, and the number of tokens of each call of the model.

    `replace` may give another result; then nothing is kept.
    """

    model: nn.Module
    replace: Replace | None = None
    kept: list[Operation] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    counts: Counter[tuple[int, Key]] = field(default_factory=Counter)
    bytes: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in self.model.named_modules()}
        self.running: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        several = type(output) in (tuple, list) and all(isinstance(each, Tensor) for each in output)
        place = _place() if self.running and (several or isinstance(output, Tensor)) else None
        if place is None:
            return output
        given = tuple(id(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        if not several:
            return self._seen((self.running[-1], place, 0), output, given)
        seen = (
            self._seen((self.running[-1], place, part), each, given)
            for part, each in enumerate(output)
        )
        return type(output)(seen)

    def _seen(self, key: Key, output: Tensor, given: tuple[int, ...]) -> Tensor:
        call = len(self.sizes) - 1
        number = self.counts[call, key]
        self.counts[call, key] += 1
        if self.replace is not None:
            other = self.replace(Operation(key, call, number, output, given, output))
            return output if other is None else other
        self.bytes += output.nbytes
        if self.bytes > MOST_BYTES:
            raise TooLarge
        self.kept.append(Operation(key, call, number, output.detach().clone(), given, output))
        return output

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While active, operations of this model are seen."""

        def first(module: nn.Module, args: Any, named: Any) -> None:
            given = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
            self.sizes.append(next((each.shape[1] for each in given if each.ndim > 1), 0))

        def enter(module: nn.Module, args: Any) -> None:
            self.running.append(self.names[id(module)])

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.running.pop()

        handles = [self.model.register_forward_pre_hook(first, with_kwargs=True)]
        for each in self.model.modules():
            # code of torch around an operation belongs to the module that calls it
            if not type(each).__module__.startswith("torch.nn"):
                handles.append(each.register_forward_pre_hook(enter))
                handles.append(each.register_forward_hook(leave, always_call=True))
        with torch.no_grad(), hooked(handles), self:
            yield


def _place() -> Place | None:
    """The innermost place in code that is neither torch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*OWN, "<")):
            return Place(frame.f_code, frame.f_lasti)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@final
@dataclass(frozen=True)
class Alignment:
    """Which part of a result of one call is which part of the same result in one forward.

    The forward has `length` tokens; they are the columns from `first` on of row `row` in the calls.
    """

    length: int
    row: int
    rows: int
    first: int
    sizes: tuple[int, ...]

    def tokens(self, call: int) -> tuple[int, int, int, int]:
        """Of a call: its first and last column, and the first and last that is a token here."""
        start = sum(self.sizes[:call])
        stop = start + self.sizes[call]
        last = self.first + self.length
        return start, stop, max(start, self.first), min(stop, last)

    def number(self, operation: Operation, good: int, bad: int) -> int | None:
        """How often the operation ran before in the forward: as in the call, or once a token."""
        if good == bad:
            return operation.number
        start, stop, lo, hi = self.tokens(operation.call)
        if (start, stop) != (lo, hi) or bad * self.length != good * (stop - start):
            return None
        each = bad // (stop - start)
        return (start - self.first) * each + operation.number

    def parts(
        self, good: torch.Size, bad: torch.Size, call: int
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """The same tokens in the two results; None where the axes do not tell."""
        if len(good) != len(bad):
            return None
        found = [self._axis(*sizes, call) for sizes in zip(good, bad, strict=True)]
        kept = [each for each in found if each is not None]
        if len(kept) < len(found):
            return None
        return tuple(one for one, _ in kept), tuple(other for _, other in kept)

    def differing(self, wrong: Tensor, operation: Operation) -> tuple[int, ...]:
        """The tokens at which a result differs; `wrong` is of the compared part."""
        start, stop, lo, hi = self.tokens(operation.call)
        new, whole = (stop - start, hi - lo), (stop, hi - self.first)
        sizes = list(zip(operation.result.shape, wrong.shape, strict=True))
        for axis, pair in enumerate(sizes):
            if pair in (new, whole):
                others = [each for each in range(wrong.ndim) if each != axis]
                at_T = (wrong.sum(others) if others else wrong).nonzero().flatten().tolist()
                return tuple(each + (lo - self.first) * (pair == new) for each in at_T)
        return ()

    def _axis(self, good: int, bad: int, call: int) -> tuple[slice, slice] | None:
        start, stop, lo, hi = self.tokens(call)
        if good == self.length and hi > lo:
            if bad == stop - start:
                return slice(lo - self.first, hi - self.first), slice(lo - start, hi - start)
            if bad == stop:
                return slice(0, hi - self.first), slice(self.first, hi)
        if good == bad:
            return slice(None), slice(None)
        if good == 1 and bad == self.rows:
            return slice(None), slice(self.row, self.row + 1)
        return None
