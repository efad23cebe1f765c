"""Change what a model passes to its attention kernel, before anything that records calls sees it.

A record of the call holds the changed arguments, as it does where the model's own code is wrong. An
injection at the kernel would look like a wrong kernel.

Axes: B batch, T query positions, H query heads, D head width.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, final

from torch import nn

from attncheck.attention.call import Handler, Kernel
from attncheck.attention.interface import handled

TABLE = "ALL_ATTENTION_FUNCTIONS"


@final
class _Table:
    """The table of kernels as a modeling module sees it: each passes through a handler."""

    def __init__(self, table: Any, owners: frozenset[int], handler: Handler) -> None:
        self._table, self._owners, self._handler = table, owners, handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __getitem__(self, name: str) -> Any:
        return self._handled(self._table[name])

    def get_interface(self, name: str, default: Any) -> Any:
        return self._handled(self._table.get_interface(name, default))

    def _handled(self, kernel: Kernel) -> Kernel:
        return handled(kernel, self._owners, self._handler)


def homes(model: nn.Module) -> list[Any]:
    """The modeling modules of this model that look kernels up in the library's table."""
    names = dict.fromkeys(type(module).__module__ for module in model.modules())
    return [sys.modules[name] for name in names if hasattr(sys.modules.get(name), TABLE)]


@contextlib.contextmanager
def passed_on(model: nn.Module, handler: Handler) -> Iterator[None]:
    """While active, every kernel call goes through `handler` before it reaches the kernel."""
    owners = frozenset(id(module) for module in model.modules())
    before = [(home, getattr(home, TABLE)) for home in homes(model)]
    try:
        for home, table in before:
            setattr(home, TABLE, _Table(table, owners, handler))
        yield
    finally:
        for home, table in before:
            setattr(home, TABLE, table)
