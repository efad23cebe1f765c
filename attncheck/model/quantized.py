"""Quantized linear layers whose weights only the layer itself can read.

bitsandbytes, GPTQ, AWQ, HQQ and float8 layers keep integers or single bytes beside scales, in
formats of their own. Given unit vectors, such a layer answers with the columns of its matrix, as
its kernel reads them. So it can be computed in float64, which no such kernel takes.

Axes: N in, O out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 1024
"""Unit vectors that a layer is given at a time."""


def quantized_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that map `in_features` to `out_features` with quantized weights, by name."""
    return {name: each for name, each in model.named_modules() if _stored(each) is not None}


def quantized_kind(model: nn.Module) -> str | None:
    """The kind of parameter that holds quantized weights, otherwise of layer; None without any."""
    kinds = {type(parameter.data) for parameter in model.parameters()} - {Tensor}
    for kind in kinds:
        if getattr(kind, "dequantize", None) not in (None, Tensor.dequantize):
            return kind.__name__
    for module in model.modules():
        stored = _stored(module)
        if stored is not None:
            if stored.is_quantized:
                return str(stored.dtype).removeprefix("torch.")
            plain = type(stored) in (Tensor, nn.Parameter)
            return type(module if plain else stored).__name__
    return None


def _stored(module: nn.Module) -> Tensor | None:
    """The quantized numbers of a linear layer: integers, or floats of a single byte."""
    if not all(
        isinstance(getattr(module, name, None), int) for name in ("in_features", "out_features")
    ):
        return None
    packed = getattr(module, "weight", None)
    if callable(packed) and not isinstance(packed, Tensor):
        weight = packed()  # torch's own quantized layers keep it packed for their kernel
        return weight if isinstance(weight, Tensor) and weight.is_quantized else None
    own = chain(module.parameters(recurse=False), module.buffers(recurse=False))
    return next(
        (
            each
            for each in own
            if each.ndim >= 2
            and each.dtype != torch.bool
            and (not each.is_floating_point() or each.dtype.itemsize == 1)
        ),
        None,
    )


def answer_in_float64(model: nn.Module) -> None:
    """Have quantized layers compute with the matrix that they stand for when their input is
    float64.
    """
    for module in quantized_layers(model).values():
        if not hasattr(module.forward, "either"):
            module.forward = _either(module, module.forward)
    for module in model.modules() if quantized_kind(model) else ():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            hooks.update((key, _below_float64(module, hook)) for key, hook in hooks.items())


def _below_float64(module: nn.Module, hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook by which a module quantizes its input or output, kept from float64; others stay."""
    if getattr(hook, "__self__", None) is not module:
        return hook

    def call(owner: nn.Module, args: Any, *output: Any) -> Any:
        wide = any(isinstance(each, Tensor) and each.dtype == torch.float64 for each in args)
        return None if wide else hook(owner, args, *output)

    return call


def _either(module: nn.Module, usual: Callable[..., Any]) -> Callable[..., Any]:
    def forward(given: Tensor, *args: Any, **named: Any) -> Any:
        if given.dtype != torch.float64:
            return usual(given, *args, **named)
        weight_ON, bias_O = dequantized(module, usual, given.device)
        bias_O = None if bias_O is None else bias_O.double()
        return F.linear(given.double(), weight_ON.double(), bias_O)

    forward.either = True  # type: ignore[attr-defined]
    return forward


def why_no_gradient(model: nn.Module) -> str | None:
    """Why the kernels of quantized layers give no gradient to ask about: those for inference pass
    none on, and one scale for all tokens lets each depend on every other.
    """
    layer = next(iter(quantized_layers(model).values()), None)
    if layer is None:
        return None
    weight = next((each for each in chain(layer.parameters(), layer.buffers())), torch.zeros(0))
    shape, dtype = (2, cast(int, layer.in_features)), _computes_in(layer)
    given = torch.ones(shape, dtype=dtype, device=weight.device)
    given[1] = 2.0  # the larger token decides a scale that both share
    given.requires_grad_()
    with torch.enable_grad(), torch._C.DisableTorchFunction():
        answer = layer(given)[0].sum()
    found = torch.autograd.grad(answer, given, allow_unused=True) if answer.requires_grad else ()
    if not any(each is not None and each.any() for each in found):
        return "the kernels of its quantized layers pass no gradient on"
    shared = any(each is not None and each[1].any() for each in found)
    return "its quantized layers have one scale for all tokens of a call" if shared else None


@contextlib.contextmanager
def other_rounding(model: nn.Module, seed: int) -> Iterator[None]:
    """While active, the rounding of each quantized layer has another sign at random: what its
    answer differs by from its matrix is added or taken away. Another scale, which a batch or a
    chunk brings about, rounds as far and otherwise.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = quantized_layers(model).values()
    usual = [(module, module.forward) for module in layers]
    try:
        for module, forward in usual:
            module.forward = _rounded_otherwise(module, forward, generator)
        yield
    finally:
        for module, forward in usual:
            module.forward = forward


def _rounded_otherwise(
    module: nn.Module, usual: Callable[..., Any], generator: torch.Generator
) -> Callable[..., Any]:
    def forward(given: Tensor, *args: Any, **named: Any) -> Any:
        answer = usual(given, *args, **named)
        if given.dtype == torch.float64 or type(answer) is not Tensor:
            return answer
        weight_ON, bias_O = dequantized(module, usual, given.device)
        bias_O = None if bias_O is None else bias_O.float()
        exact = F.linear(given.float(), weight_ON.float(), bias_O)
        drawn = torch.randint(2, answer.shape, generator=generator).to(exact)
        return (exact + (answer - exact) * (2 * drawn - 1)).to(answer.dtype)

    return forward


@torch.no_grad()
def dequantized(
    module: Any, usual: Callable[..., Any], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """The matrix (O, N) that a layer stands for, and its bias (O,), in its kernel's precision."""
    stored = _stored(module)
    if stored is not None and stored.is_quantized:
        return stored.dequantize(), module.bias()
    dtype = _computes_in(module)
    size, columns = int(module.in_features), []
    with torch._C.DisableTorchFunction(), _evaluating(module):
        silent = usual(torch.zeros(1, size, dtype=dtype, device=device))
        for start in range(0, size, ROWS):
            ones = torch.zeros(min(ROWS, size - start), size, dtype=dtype, device=device)
            ones[torch.arange(len(ones)), start + torch.arange(len(ones))] = 1
            columns.append(usual(ones) - silent)
    bias = getattr(module, "bias", None)
    return torch.cat(columns).T, silent[0] if isinstance(bias, Tensor) else None


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Some kernels round the same weights differently in training."""
    before, module.training = module.training, False
    try:
        yield
    finally:
        module.training = before


def _computes_in(module: nn.Module) -> torch.dtype:
    """The dtype that the layer says it computes in, otherwise that of its scales."""
    said = getattr(module, "compute_dtype", None)
    if isinstance(said, torch.dtype):
        return said
    own = (each.dtype for each in chain(module.parameters(), module.buffers()))
    scales = (each for each in own if each.is_floating_point and each.itemsize > 1)
    return next((dtype for dtype in scales if dtype != torch.float64), torch.float32)
