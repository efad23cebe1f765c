"""Route the attention calls of a model through a handler, at transformers' attention interface.

The registered kernels (sdpa, flex_attention, flash) are wrapped in place, eager kernels in the
module that defines them. Models that compute attention inline never call either.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, Handler, Kernel

EAGER = "eager_attention_forward"


def attention_table() -> dict[str, Any]:
    """The registered attention kernels by name: a plain dictionary before transformers 4.50."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if isinstance(ALL_ATTENTION_FUNCTIONS, dict):
        return ALL_ATTENTION_FUNCTIONS
    table: dict[str, Any] = type(ALL_ATTENTION_FUNCTIONS)._global_mapping
    return table


def handled(kernel: Kernel, owners: frozenset[int], handler: Handler) -> Kernel:
    """A kernel whose calls by the modules with these ids go to `handler`."""

    @functools.wraps(kernel)
    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        # the table is shared by every model in the process
        if id(module) not in owners or rest:
            return kernel(module, query, key, value, attention_mask, *rest, **options)
        return handler(AttentionCall(module, query, key, value, attention_mask, options, kernel))

    return call


@contextlib.contextmanager
def intercept(model: nn.Module, handler: Handler) -> Iterator[None]:
    """While active, `handler` gets every kernel call of this model and returns its output."""
    owners = frozenset(id(module) for module in model.modules())
    table = attention_table()
    kernels = dict(table)
    defining = {sys.modules.get(type(module).__module__) for module in model.modules()}
    eager = [(home, getattr(home, EAGER)) for home in defining if hasattr(home, EAGER)]
    try:
        table.update({name: handled(kernel, owners, handler) for name, kernel in kernels.items()})
        for home, kernel in eager:
            setattr(home, EAGER, handled(kernel, owners, handler))
        yield
    finally:
        table.update(kernels)
        for home, kernel in eager:
            setattr(home, EAGER, kernel)
