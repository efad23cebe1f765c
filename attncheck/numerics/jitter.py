"""Every rounding of a model drawn anew, to measure what the worst of many roundings does.

Another order of summation (`attncheck.numerics.reorder`) is one other rounding. A model in which a
choice hangs on rounding, as a router's does between two experts that are nearly equal, takes the
other choice only in some: there the largest of many roundings is what rounding explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.numerics.as_written import AsWritten

ROUNDED = frozenset(
    {
        F.linear,
        F.embedding,
        F.scaled_dot_product_attention,
        F.softmax,
        torch.softmax,
        torch.Tensor.softmax,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.bmm,
        torch.addmm,
        torch.rsqrt,
        torch.cos,
        torch.sin,
        torch.Tensor.cos,
        torch.Tensor.sin,
    }
)


@final
class Jitter(AsWritten):
    """While active, the results of products, softmax and angles move up or down by one rounding of
    their dtype, at random.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in ROUNDED or not isinstance(result, Tensor):
            return result
        return self._moved(result) if result.is_floating_point() else result

    def _moved(self, result: Tensor) -> Tensor:
        drawn = torch.randint(2, result.shape, generator=self.generator).to(result.device)
        factor = 1 + torch.finfo(result.dtype).eps * (2 * drawn.to(result.dtype) - 1)
        return result * factor
