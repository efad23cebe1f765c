"""Run the same mathematics in another order, to measure what rounding alone does to a model.

Every contraction is cut in two and added up, every sum runs backwards, every angle moves by one
unit in the last place. Nothing of what the model computes changes but the rounding, so the
difference of the logits is the noise floor.

Axes: K the contracted axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.numerics.as_written import AsWritten

SEEDS = 1000
SLICE = 1 << 17
"""Numbers of the second half of a split product that exist beside the first, at a time."""


def _linear_split(left: Tensor, weight_OK: Tensor, share: float) -> Tensor:
    """`_split` of a linear map, in slices of a wide output: the logits of a vocabulary need no
    second copy.
    """
    cut = max(1, int(left.shape[-1] * share))
    total = F.linear(left[..., :cut], weight_OK[:, :cut])
    size = max(1, SLICE * weight_OK.shape[0] // max(1, total.numel()))
    for start in range(0, weight_OK.shape[0], size):
        total[..., start : start + size] += F.linear(
            left[..., cut:], weight_OK[start : start + size, cut:]
        )
    return total


def _split(
    func: Callable[..., Any], left: Tensor, right: Tensor, right_axis: int, share: float
) -> Any:
    cut = max(1, int(left.shape[-1] * share))
    total = func(left[..., :cut], right.narrow(right_axis, 0, cut))
    return total.add_(func(left[..., cut:], right.narrow(right_axis, cut, left.shape[-1] - cut)))


def _in_blocks(weight: Tensor) -> bool:
    """Whether a weight is of a kind that stands for other numbers than it stores, and may not be
    cut anywhere.
    """
    return getattr(type(weight), "dequantize", None) not in (None, Tensor.dequantize)


def _in_two(left: Tensor, weight: Tensor, share: float) -> Tensor:
    """The same split where the weight cannot be cut: each half of the input is zeroed in turn."""
    cut = max(1, int(left.shape[-1] * share))
    first, second = left.clone(), left.clone()
    first[..., cut:], second[..., :cut] = 0, 0
    return F.linear(first, weight) + F.linear(second, weight)


@final
class Reorder(AsWritten):
    """Active, it recomputes linear maps, products, softmax, means and angles with other roundings.

    `share` is where a contraction is cut, so that two values give two independent samples of the
    noise.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs) if kwargs else {}
        handler = HANDLERS.get(func)
        changed = handler(self.share, func, args, named) if handler else NotImplemented
        return func(*args, **named) if changed is NotImplemented else changed


def _floating(*values: object) -> bool:
    return all(
        isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0
        for value in values
    )


def _linear(
    share: float, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    if len(args) < 2 or not _floating(*args[:2]) or args[0].shape[-1] < 2 or args[1].ndim != 2:
        return NotImplemented
    bias = args[2] if len(args) > 2 else named.get("bias")
    out = (
        _in_two(args[0], args[1], share)
        if _in_blocks(args[1])
        else _linear_split(args[0], args[1], share)
    )
    return out if bias is None else out + bias


def _product(
    share: float, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    if (
        named
        or len(args) != 2
        or not _floating(*args)
        or min(args[0].ndim, args[1].ndim) < 2
        or args[0].shape[-1] < 2
    ):
        return NotImplemented
    return _split(func, args[0], args[1], -2 % args[1].ndim, share)


def _attention(
    share: float, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Fused attention on queries and keys whose channels are turned round: every score is summed
    backwards.
    """
    if len(args) < 3 or not _floating(*args[:3]):
        return NotImplemented
    return func(args[0].flip(-1), args[1].flip(-1), *args[2:], **named)


def _backwards(
    share: float, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Softmax over a reversed axis, turned back."""
    dim = named.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int) or not _floating(args[0]):
        return NotImplemented
    return func(args[0].flip(dim), *args[1:], **named).flip(dim)


def _reduced(
    share: float, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """A mean or sum over one reversed axis."""
    dim = named.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int) or isinstance(dim, bool) or not _floating(args[0]):
        return NotImplemented
    return func(args[0].flip(dim), *args[1:], **named)


def _angle(
    share: float, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Each angle, and what comes of it, is rounded by itself: at other positions otherwise."""
    if not _floating(args[0]):
        return NotImplemented
    generator = torch.Generator().manual_seed(int(share * args[0].shape[-1] * SEEDS))
    return _nudged(func(_nudged(args[0], generator), **named), generator)


def _nudged(values: Tensor, generator: torch.Generator) -> Tensor:
    """Every number moved up or down by one unit in the last place."""
    drawn = torch.randint(2, values.shape, generator=generator).to(values)
    return values * (1 + torch.finfo(values.dtype).eps * (2 * drawn - 1))


HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    torch.matmul: _product,
    torch.Tensor.matmul: _product,
    torch.Tensor.__matmul__: _product,
    torch.bmm: _product,
    F.scaled_dot_product_attention: _attention,
    F.softmax: _backwards,
    torch.softmax: _backwards,
    torch.Tensor.softmax: _backwards,
    torch.mean: _reduced,
    torch.Tensor.mean: _reduced,
    torch.sum: _reduced,
    torch.Tensor.sum: _reduced,
    torch.cos: _angle,
    torch.sin: _angle,
    torch.Tensor.cos: _angle,
    torch.Tensor.sin: _angle,
}
