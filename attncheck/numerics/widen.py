"""Compute in float64 with weights that stay narrower: each operator is given its arguments widened.

Every float32, bfloat16 and float16 number is a float64 number, so this equals casting the whole
model without the memory for it: only the weights of the running operator exist in float64. It
reaches weights that cannot be cast as well, such as offloaded ones, which exist only while their
layer runs.

Axes: B batch, T positions, I inputs and O outputs of a linear map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.numerics.promote import Promote
from attncheck.numerics.rebuilt import made_by

LOW = frozenset({torch.float32, torch.bfloat16, torch.float16})
DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
PICKING = frozenset(
    {
        "embedding",
        "__getitem__",
        "index_select",
        "gather",
        "select",
        "narrow",
        "chunk",
        "split",
        "unbind",
    }
)
SHAPING = frozenset(
    {"view", "reshape", "flatten", "unflatten", "transpose", "permute", "t", "movedim"}
    | {"squeeze", "unsqueeze", "expand", "detach"}
)
ASKING = frozenset(
    {
        "__get__",
        "__set__",
        "size",
        "stride",
        "dim",
        "numel",
        "element_size",
        "data_ptr",
        "untyped_storage",
        "is_contiguous",
    }
    | {
        "is_floating_point",
        "is_complex",
        "get_device",
        "__len__",
        "requires_grad_",
        "register_hook",
        "equal",
        "isfinite",
        "grad",
    }
)
UNWIDENED = PICKING | SHAPING | ASKING
"""Operators whose outcome is as exact without widening: they only pick, shape or ask."""
QUESTIONS = (ASKING - {"__get__"}) | {
    getattr(torch.Tensor, name).__get__
    for name in ("dtype", "shape", "device", "ndim", "requires_grad", "grad", "is_leaf")
}
"""Queries that do not read a tensor's numbers, by name or as the function itself."""

SLICE = 1 << 18
"""Numbers of a weight that are in float64 at a time: few enough for their memory to be used again
and again.
"""

IN_PLACE = frozenset(
    {
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__imatmul__",
    }
)


@final
class Widen(Promote):
    """`Promote`, and every operator that computes with a narrower floating tensor is given it as
    float64.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs) if kwargs else {}
        if func == DTYPE:
            return torch.float64 if (own := func(*args)) in LOW else own
        name = getattr(func, "__name__", "")
        if name in UNWIDENED:
            return super().__torch_function__(func, types, args, named)
        if func is F.linear and _large(*args[1:2]):
            return _in_slices(*args, **named)
        kept = 1 if _writes_to_its_first(name) else 0
        wide = (*args[:kept], *map(_wide, args[kept:]))
        named = {key: value if key == "out" else _wide(value) for key, value in named.items()}
        return super().__torch_function__(func, types, wide, named)


def _large(weight_OI: Any = None) -> bool:
    plain = type(weight_OI) in (Tensor, nn.Parameter)
    return plain and weight_OI.dtype in LOW and weight_OI.numel() > SLICE


def _in_slices(x_BTI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """A linear map with a weight as large as a vocabulary: about `SLICE` of its numbers are in
    float64 at a time.
    """
    if weight_OI.requires_grad and torch.is_grad_enabled():
        return F.linear(_wide(x_BTI), weight_OI.double(), _wide(bias_O))
    out_BTO: Tensor = _Sliced.apply(_wide(x_BTI), weight_OI)  # type: ignore[no-untyped-call]
    return out_BTO if bias_O is None else out_BTO + _wide(bias_O)


@final
class _Sliced(torch.autograd.Function):
    """The product of inputs with a weight in slices, and the gradient of the inputs likewise; the
    weight has none.
    """

    @staticmethod
    def forward(ctx: Any, x_BTI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.weight_OI = weight_OI
        out_BTO = x_BTI.new_empty(*x_BTI.shape[:-1], weight_OI.shape[0])
        for start, part in _parts(weight_OI):
            out_BTO[..., start : start + len(part)] = F.linear(x_BTI, part)
        return out_BTO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad_BTO,) = grads
        total_BTI = grad_BTO.new_zeros(*grad_BTO.shape[:-1], ctx.weight_OI.shape[1])
        for start, part in _parts(ctx.weight_OI):
            total_BTI += grad_BTO[..., start : start + len(part)] @ part
        return total_BTI, None


def _parts(weight_OI: Tensor) -> Iterator[tuple[int, Tensor]]:
    rows = max(1, SLICE // weight_OI.shape[1])
    for start in range(0, weight_OI.shape[0], rows):
        yield start, weight_OI[start : start + rows].detach().double()


def _writes_to_its_first(name: str) -> bool:
    if name.endswith("__"):
        return name == "__setitem__" or name in IN_PLACE
    return name.endswith("_")


def _dequantized(value: Tensor) -> Tensor:
    """Quantized weights as the numbers that they stand for; any other tensor itself."""
    known = getattr(type(value), "dequantize", None)
    plain = known in (None, torch.Tensor.dequantize)
    return value if plain else value.dequantize()


def _for_now(weight: Tensor) -> Tensor:
    """A weight in float64; unless it requires a gradient, a backward pass widens it again."""
    if weight.requires_grad and torch.is_grad_enabled():
        return _dequantized(weight).double()
    return made_by(lambda: _dequantized(weight).double())


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.dtype not in LOW:
            return value
        return _for_now(value) if isinstance(value, nn.Parameter) else _dequantized(value).double()
    if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
        return type(value)(map(_wide, value)) if type(value) in (list, tuple) else value
    return value
