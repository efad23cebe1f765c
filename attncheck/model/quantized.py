"""Linear layers whose weights are codes that only the layer itself can read: what they stand for is
asked of the layer.

bitsandbytes, GPTQ, AWQ, HQQ and float8 layers keep integers or single bytes beside scales, in
formats of their own. Given one input after the other of which all but one number is 0, such a layer
answers with the columns of its matrix, as its kernel reads them. So it can be computed in float64,
which no such kernel takes.

Axes: N in O out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 1024
"""Inputs asked at a time."""


def coded_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that map `in_features` to `out_features` with weights in codes, by name."""
    return {name: module for name, module in model.named_modules() if _codes(module) is not None}


def coded_kind(model: nn.Module) -> str | None:
    """What holds such weights: a kind of parameter, else of layer; None where there are none."""
    for module in model.modules():
        codes = _codes(module)
        if codes is not None:
            plain = type(codes) in (Tensor, nn.Parameter)
            return type(module).__name__ if plain else type(codes).__name__
    return None


def _codes(module: nn.Module) -> Tensor | None:
    if not all(
        isinstance(getattr(module, name, None), int) for name in ("in_features", "out_features")
    ):
        return None
    own = chain(module.parameters(recurse=False), module.buffers(recurse=False))
    return next((each for each in own if each.ndim >= 2 and _is_code(each)), None)


def _is_code(value: Tensor) -> bool:
    return value.dtype != torch.bool and (
        not value.is_floating_point() or value.dtype.itemsize == 1
    )


def answer_in_float64(model: nn.Module) -> None:
    """Have such layers compute with the matrix that they stand for when they are given float64."""
    for module in coded_layers(model).values():
        if not hasattr(module.forward, "coded"):
            module.forward = _either(module, module.forward)


def _either(module: nn.Module, usual: Callable[..., Any]) -> Callable[..., Any]:
    def forward(given: Tensor, *args: Any, **named: Any) -> Any:
        if given.dtype != torch.float64:
            return usual(given, *args, **named)
        weight_ON, bias_O = spec(module, usual, given.device)
        return F.linear(
            given.double(), weight_ON.double(), None if bias_O is None else bias_O.double()
        )

    forward.coded = True  # type: ignore[attr-defined]
    return forward


@torch.no_grad()
def spec(
    module: Any, usual: Callable[..., Any], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """The matrix (O, N) that a layer stands for, and its bias (O,), in the precision of its kernel."""
    dtype = _computes_in(module)
    bias = getattr(module, "bias", None)
    size, columns = int(module.in_features), []
    with torch._C.DisableTorchFunction(), _evaluating(module):
        silent = usual(torch.zeros(1, size, dtype=dtype, device=device))
        for start in range(0, size, ROWS):
            ones = torch.zeros(min(ROWS, size - start), size, dtype=dtype, device=device)
            ones[torch.arange(len(ones)), start + torch.arange(len(ones))] = 1
            columns.append(usual(ones) - silent)
        return torch.cat(columns).T, silent[0] if isinstance(bias, Tensor) else None


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """In training some kernels read the same codes by other roundings."""
    before, module.training = module.training, False
    try:
        yield
    finally:
        module.training = before


def _computes_in(module: nn.Module) -> torch.dtype:
    """The dtype that the layer says it computes in, else that of its wide numbers."""
    said = getattr(module, "compute_dtype", None)
    if isinstance(said, torch.dtype):
        return said
    wide = (
        each.dtype
        for each in chain(module.parameters(), module.buffers())
        if each.is_floating_point()
    )
    return next(
        (dtype for dtype in wide if dtype.itemsize > 1 and dtype != torch.float64), torch.float32
    )
