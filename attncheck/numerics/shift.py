"""Run a model as if its weights were moved along a direction; the weights themselves stay.

Every operator that is given one of the weights computes with the moved weight, in float64. The step
is a tensor: where it requires a gradient, autograd gives the derivative along the direction without
a gradient for any weight.

Axes: B batch, T positions, O outputs and I inputs of a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.numerics.as_written import AsWritten
from attncheck.numerics.rebuilt import made_by
from attncheck.numerics.widen import QUESTIONS


@final
@dataclass(frozen=True, kw_only=True)
class Direction:
    """One weight and the outer product along which it moves: two vectors, whatever its size."""

    weight_OI: nn.Parameter
    left_O: Tensor
    right_I: Tensor

    def moved(self, step: Tensor) -> Tensor:
        """weight_OI in float64, `step` along the direction."""
        return self.weight_OI.double() + self.change(step)

    def change(self, step: Tensor) -> Tensor:
        """What is added to weight_OI. The step is one number, or one for each row, (O, 1), or
        column, (1, I).
        """
        return step.to(self.left_O.device) * self.left_O[:, None] * self.right_I


def drawn(weights: Iterable[nn.Parameter], seed: int) -> list[Direction]:
    """A random direction of each weight, of the weight's own size as a linear map."""
    generator = torch.Generator().manual_seed(seed)
    return [_drawn(weight, generator) for weight in weights]


def _drawn(weight_OI: nn.Parameter, generator: torch.Generator) -> Direction:
    rows, columns = weight_OI.shape
    size = float(weight_OI.detach().double().pow(2).mean().sqrt()) / min(rows, columns) ** 0.5
    left_O, right_I = (
        torch.randn(n, generator=generator, dtype=torch.float64).to(weight_OI.device)
        for n in (rows, columns)
    )
    return Direction(weight_OI=weight_OI, left_O=left_O * size, right_I=right_I)


@final
class Shift(AsWritten):
    """While active, operators are given moved weights. Enter it last, so that it sees the weights
    before any other mode.
    """

    def __init__(self, directions: Sequence[Direction], step: Tensor) -> None:
        super().__init__()
        self.directions = {id(each.weight_OI): each for each in directions}
        self.step = step

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs) if kwargs else {}
        if func in QUESTIONS or getattr(func, "__name__", "") in QUESTIONS:
            return func(*args, **named)
        if func is F.linear:
            return self._linear(*args, **named)
        return func(
            *map(self._moved, args), **{key: self._moved(value) for key, value in named.items()}
        )

    def _linear(self, x_BTI: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear map plus what the outer product adds: the moved weight itself is not needed."""
        direction = self.directions.get(id(weight))
        out_BTO = F.linear(x_BTI, weight, bias)
        if direction is None:
            return out_BTO
        if self.step.ndim:
            return out_BTO + F.linear(x_BTI.double(), direction.change(self.step))
        return (
            out_BTO
            + (self.step * (x_BTI.double() @ direction.right_I))[..., None] * direction.left_O
        )

    def _moved(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(map(self._moved, value))
        direction = self.directions.get(id(value))
        return value if direction is None else made_by(lambda: direction.moved(self.step))
