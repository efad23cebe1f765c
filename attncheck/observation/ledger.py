"""The ledger of a failing forward: what each attention kernel got and gave, call by call.

Axes: B batch, H query heads, G key/value heads, T query positions, S key slots, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.inline import observe_inside
from attncheck.core.errors import Unsupported
from attncheck.model.subject import Subject


@final
@dataclass(frozen=True)
class LedgerCall:
    """One call of a kernel: its arguments, what it returned, and the innermost product within it.

    `start` and `stop` are its queries in the whole forward. `inside` is what the kernel's own
    arithmetic used, where that could be followed.
    """

    call: AttentionCall
    context_BTHD: Tensor
    inside: AttentionCall | None = None
    inside_BTHD: Tensor | None = None
    start: int = 0
    stop: int = 0

    @property
    def when(self) -> str:
        """The kind of call: prefill, several tokens on a cache, or one token on a cache."""
        if not self.start:
            return "prefill"
        return "step" if self.stop - self.start == 1 else "chunk"


@final
@dataclass
class Ledger:
    """The calls of one forward by the name of the module that made them, in order."""

    names: dict[int, str]
    calls: dict[str, list[LedgerCall]] = field(default_factory=dict)

    def note(self, entry: LedgerCall) -> None:
        """Keep one call."""
        self.calls.setdefault(self.names.get(id(entry.call.module), ""), []).append(entry)

    def module_of(self, layer: int, number: Callable[[AttentionCall], int]) -> str:
        """The name of the first attention module in a layer; `number` gives the layer of a call."""
        first = ((name, entries[0].call) for name, entries in self.calls.items() if entries)
        return next((name for name, call in first if number(call) == layer), "")

    def of(self, module: nn.Module, length: int) -> list[LedgerCall]:
        """The last calls of a module that make up `length` queries; empty where none do."""
        kept: list[LedgerCall] = []
        stop = length
        for entry in reversed(self.calls.get(self.names.get(id(module), ""), [])):
            start = stop - entry.call.query_BHTD.shape[2]
            if start < 0:
                return []
            kept.insert(0, replace(entry, start=start, stop=stop))
            if not start:
                return kept
            stop = start
        return []


def _kept(call: AttentionCall) -> AttentionCall:
    """A copy that later writes into a buffer of the cache leave alone."""
    mask = call.mask.clone() if isinstance(call.mask, Tensor) else call.mask
    states = (call.query_BHTD, call.key_BGSD, call.value_BGSD)
    query, key, value = (each.detach().clone() for each in states)
    return replace(call.copy(), query_BHTD=query, key_BGSD=key, value_BGSD=value, mask=mask)


def _entry(call: AttentionCall) -> tuple[LedgerCall, Any]:
    """The record of one call with what is inside it, and the kernel's output."""
    kept, inner = _kept(call), []

    def within(seen: AttentionCall) -> Any:
        copy = _kept(seen)
        output = seen.run()
        inner.append((copy, output[0].detach().clone()))
        return output

    with observe_inside(call.module, call.query_BHTD.shape[0], within):
        output = call.run()
    inside, inside_BTHD = inner[-1] if inner else (None, None)
    context_BTHD = output[0] if isinstance(output, tuple) else output
    return LedgerCall(kept, context_BTHD.detach().clone(), inside, inside_BTHD), output


@contextlib.contextmanager
def recorded_calls(subject: Subject) -> Iterator[Ledger]:
    """While active, every attention call of the model is kept in the ledger.

    Raises:
        Unsupported: the model runs no attention that can be recorded.
    """
    ledger = Ledger({id(module): name for name, module in subject.model.named_modules()})

    def handle(call: AttentionCall) -> Any:
        entry, output = _entry(call)
        ledger.note(entry)
        return output

    with subject.handle_calls(handle):
        yield ledger


def ledger_of(subject: Subject, run: Callable[[], object]) -> Ledger:
    """The ledger of one run; empty where the model's attention cannot be recorded."""
    try:
        with torch.no_grad(), recorded_calls(subject) as ledger:
            run()
    except Unsupported:
        run()
        return Ledger({})
    return ledger
