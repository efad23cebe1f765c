"""Function modes see operators as a model's code calls them, also where its forward is compiled.

A compiler traces a function mode into the code that it makes: measured with torch 2.13, a forward
compiled under the reordering of sums gave logits of another model.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class AsWritten(TorchFunctionMode):
    """A function mode under which compiled functions run as they are written, where torch can."""

    def __enter__(self) -> Any:
        self._stance = written()
        self._stance.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._stance.__exit__(*exception)


def written() -> AbstractContextManager[Any]:
    """The context in which nothing runs compiled; an empty one where nothing was compiled so far,
    since loading the compiler takes seconds.
    """
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    found: AbstractContextManager[Any] = stance("force_eager")
    return found
