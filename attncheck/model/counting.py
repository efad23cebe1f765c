"""Whether a forward counts: without a count nothing in it can tell one place of a row from another
but by what stands before it.

Axes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.numerics.as_written import AsWritten
from attncheck.numerics.hooks import hooked

NUMBERS = frozenset(
    {torch.arange, torch.range, torch.linspace, torch.tensor, torch.as_tensor, torch.from_numpy}
)
SUMS = frozenset({torch.cumsum, torch.Tensor.cumsum, torch.Tensor.cumsum_})
CUTS = frozenset(
    {
        torch.Tensor.__getitem__,
        torch.narrow,
        torch.Tensor.narrow,
        torch.index_select,
        torch.Tensor.index_select,
    }
)


@final
class _Counts(AsWritten):
    """Watches the operations of one model for numbers that grow along the row."""

    def __init__(self, model: nn.Module, ids_BT: Tensor) -> None:
        super().__init__()
        self.ids_BT, self.running, self.seen = ids_BT, False, False
        self.tables = {id(each) for each in (*model.parameters(), *model.buffers())}
        self.buffers = {id(each) for each in model.buffers() if each.numel() >= ids_BT.shape[1]}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.running and not self.seen:
            self.seen = func in NUMBERS or self._reads_numbers(func, args)
        return func(*args, **(kwargs or {}))

    def _reads_numbers(self, func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        first = args[0] if args else None
        if any(id(each) in self.buffers for each in args):
            return True
        if not isinstance(first, Tensor):
            return False
        if func is F.embedding:
            return first.shape != self.ids_BT.shape or not torch.equal(first, self.ids_BT)
        whole = not first.is_floating_point()
        return (func in SUMS and whole) or (func in CUTS and id(first) in self.tables)


def counts(model: nn.Module, ids_BT: Tensor, run: Callable[[], object]) -> bool:
    """Whether `run`, a forward over these ids, makes or reads numbers of positions."""
    watch = _Counts(model, ids_BT)

    def start(module: nn.Module, args: Any) -> None:
        watch.running = True

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        watch.running = False

    hooks = [model.register_forward_pre_hook(start), model.register_forward_hook(stop)]
    with hooked(hooks), watch, torch.no_grad():
        run()
    return watch.seen
