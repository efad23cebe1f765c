"""Run a float64 model with no float32 left inside.

Norms, rotary tables and eager softmax ask for float32 whatever the model's dtype, which lifts the
noise of a float64 pass from 1e-15 to 1e-6. `Promote` rewrites every such explicit request to
float64 while it is active. A request for a half precision stays: a float32 or float64 model that
asks for one throws numbers away, and that is what users get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from attncheck.numerics.as_written import AsWritten

REREADING = frozenset({torch.Tensor.view, torch.frombuffer})
"""What reads the same bytes as another dtype: weights that come from a file while their layer runs.
"""


class Promote(AsWritten):
    """Rewrites `x.float()`, `x.to(torch.float32)`, `softmax(dtype=torch.float32)` and their like to
    float64.
    """

    def __enter__(self) -> Promote:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*exception)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            return torch.Tensor.double(*args)
        if func not in REREADING:
            if kwargs and kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
            if torch.dtype in map(type, args):
                args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        return func(*args, **kwargs) if kwargs else func(*args)
