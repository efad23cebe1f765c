"""The matrices of a port, found by their rows: which of them a reference's weight stands in.

Axes: R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

import torch
from torch import Tensor, nn

Standing = Literal["same", "permuted", "absent"]


@final
@dataclass(eq=False)
class PortWeights:
    """The matrices of a model by name, and the place of every row and column in them."""

    matrices: dict[str, Tensor]
    _places: dict[bytes, list[tuple[str, int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, matrix_RC in self.matrices.items():
            for axis, lines in enumerate((matrix_RC, matrix_RC.T)):
                for number, line in enumerate(lines.contiguous()):
                    self._places.setdefault(line.numpy().tobytes(), []).append((name, axis, number))

    def order_of(self, weight_RC: Tensor) -> Tensor | None:
        """order_R with which the rows of a weight stand in one matrix of the port, the first place
        first; None where they do not all stand in one.
        """
        spots = [self._places.get(row.numpy().tobytes(), []) for row in weight_RC.contiguous()]
        if not all(spots):
            return None
        for name, axis, _ in spots[0]:
            numbers = [
                next((n for other, a, n in each if (other, a) == (name, axis)), -1)
                for each in spots
            ]
            if min(numbers) >= 0:
                return torch.tensor(numbers).argsort()
        return None

    def standing(self, weight_RC: Tensor, width: int) -> Standing:
        """Whether the rows stand in the port as they are, heads of `width` rows in any order."""
        order_R = self.order_of(weight_RC)
        if order_R is None:
            return "absent"
        heads = order_R.view(-1, width) if len(order_R) % width == 0 else order_R[None]
        steps = heads[:, 1:] - heads[:, :-1]
        return "same" if bool((steps == 1).all()) else "permuted"

    def unmatched(self, known: list[Tensor]) -> dict[str, Tensor]:
        """The port's matrices that have a row which none of the reference's weights has."""
        rows = {
            row.numpy().tobytes()
            for each in known
            for m in (each, each.T)
            for row in m.contiguous()
        }
        return {
            name: matrix_RC
            for name, matrix_RC in self.matrices.items()
            if not all(row.numpy().tobytes() in rows for row in matrix_RC.contiguous())
            and not all(row.numpy().tobytes() in rows for row in matrix_RC.T.contiguous())
        }


def weights_of(model: nn.Module) -> PortWeights:
    """The matrices of a model in float64; stacks of matrices one by one."""
    found: dict[str, Tensor] = {}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if not value.is_floating_point() or value.ndim < 2 or value.is_meta:
            continue
        value = value.detach().cpu().double()
        if value.ndim == 2:
            found[name] = value
        elif value.ndim == 3:
            found |= {f"{name}[{number}]": each for number, each in enumerate(value)}
    return PortWeights(found)
