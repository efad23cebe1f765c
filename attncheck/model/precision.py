"""The precisions that a model can compute in: the dtype of its weights, and whether they fit into
memory in another one.
"""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import psutil
import torch
from torch import nn

from attncheck.model.weights import here
from attncheck.numerics.promote import Promote
from attncheck.numerics.widen import Widen

NAMES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
COMFORT = 0.4


@final
@dataclass(frozen=True)
class Precision:
    """The dtype that forwards compute in. In float64, either hidden requests for float32 are
    rewritten (`promoted`), or operators are given narrower weights widened (`widened`).
    """

    dtype: torch.dtype
    promoted: bool = False
    widened: bool = False

    @property
    def name(self) -> str:
        """The dtype as users write it."""
        return name_of(self.dtype)

    def numerics(self) -> AbstractContextManager[Any]:
        """The context that forwards run in."""
        return Widen() if self.widened else Promote() if self.promoted else contextlib.nullcontext()


def name_of(dtype: torch.dtype) -> str:
    """A dtype as users write it."""
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))


def free_memory(device: torch.device) -> int:
    """Bytes free where the model lives."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def fits(model: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the weights in this dtype take at most `COMFORT` of the free memory."""
    weights = (here(parameter) for parameter in model.parameters() if parameter.is_floating_point())
    count = sum(each.numel() for each in weights)
    return count * dtype.itemsize <= COMFORT * free_memory(device)


def widens(dtype: torch.dtype) -> bool:
    """Whether every number of a dtype is a float64 number, so that operators can be given it as
    one.
    """
    return dtype in NAMES and dtype != torch.float64


def own_dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """The dtype of each floating parameter by name: not all have the same."""
    return {
        name: value.dtype for name, value in model.named_parameters() if value.is_floating_point()
    }


def cast_floats(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model's weights and buffers; complex tables stay, since a cast to a real dtype drops
    their imaginary part.
    """
    tables = [
        (module, name, value)
        for module in model.modules()
        for name, value in module.named_buffers(recurse=False)
        if value.is_complex()
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Casting complex values")
        model.to(dtype)
    for module, name, value in tables:
        setattr(module, name, value)


def cast_back(model: nn.Module, dtypes: dict[str, torch.dtype], to: torch.dtype) -> None:
    """Undo a cast to a wider dtype, bit for bit, also where a few parameters are wider than `to`,
    the dtype of the most.
    """
    apart = {name: dtype for name, dtype in dtypes.items() if dtype != to}
    kept = {
        name: value.data.to(apart[name])
        for name, value in model.named_parameters()
        if name in apart
    }
    cast_floats(model, to)
    for name, value in model.named_parameters():
        if name in kept:
            value.data = kept[name]
