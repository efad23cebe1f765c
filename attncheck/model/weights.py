"""The tensors of a model: weights, which may be elsewhere or in parts, digests, and buffers."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

ELSEWHERE = "meta"
"""The device of a parameter whose values are on disk or in another memory until its layer runs."""


def weights_in_memory(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are here, by name: none that are offloaded, and this process's part of
    sharded ones.
    """
    return {
        name: here(value.detach())
        for name, value in model.named_parameters()
        if value.device.type != ELSEWHERE
    }


def here(value: Tensor) -> Tensor:
    """This process's part of a sharded tensor; any other tensor itself."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local


def whole(value: Tensor) -> Tensor:
    """A sharded tensor put together from all processes; any other tensor itself."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


def as_numbers(value: Tensor) -> Tensor:
    """The numbers that a quantized tensor stands for; any other tensor itself."""
    method = getattr(type(value), "dequantize", None)
    if method in (None, Tensor.dequantize):
        return value
    numbers: Tensor = method(value)
    return numbers


def is_sharded(value: Tensor) -> bool:
    """Whether each process has a part of this tensor."""
    return any(hasattr(each, "dim") for each in getattr(value, "placements", ()))


@torch.no_grad()
def digests(model: nn.Module) -> dict[str, Tensor]:
    """The digest of every parameter: equal weights have equal ones in every release."""
    return {name: digest(value) for name, value in model.named_parameters()}


def digest(value: Tensor) -> Tensor:
    """Sum, sum of sizes, sum of squares, and a sum weighted by place, in float64."""
    flat = as_numbers(whole(value.detach())).double().flatten().cpu()
    place = torch.arange(flat.numel(), dtype=torch.float64) % 8191
    return torch.stack([flat.sum(), flat.abs().sum(), flat.square().sum(), (flat * place).sum()])


def same_digest(left: Tensor, right: Tensor, slack: float) -> bool:
    """Whether two digests agree up to `slack`, relative to the sizes of the sums."""
    size, squares = max(float(left[1]), float(right[1]), 1e-30), max(float(left[2]), 1e-30)
    limits = torch.tensor([size, size, squares, 8191 * size], dtype=torch.float64) * slack
    return bool(((left - right).abs() <= limits).all())


def leave_inference_mode(model: nn.Module) -> None:
    """Give a model that was made in inference mode copies of its tensors that can be trained."""
    copies: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_inference():
                copy = nn.Parameter(parameter.clone(), parameter.requires_grad)
                module._parameters[name] = copies.setdefault(id(parameter), copy)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_inference():
                module._buffers[name] = buffer.clone()


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every buffer by name: rotary tables, masks, counters."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def changed(model: nn.Module, saved: dict[str, Tensor]) -> list[str]:
    """The names of the buffers that differ from `saved` or are in one of the two only, sorted."""
    now = dict(model.named_buffers())
    return sorted(
        name for name in now.keys() | saved.keys() if not _same(now.get(name), saved.get(name))
    )


def _same(now: Tensor | None, before: Tensor | None) -> bool:
    if now is None or before is None:
        return False
    return (
        now.shape == before.shape and now.dtype == before.dtype and bool(torch.equal(now, before))
    )


@final
class SavedBuffers:
    """The buffers of a model, to be put back any number of times: the same tensors in the same
    modules, so that one that two modules share stays one, with the values that they had.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module._buffers, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._values = {id(each): (each, each.detach().clone()) for _, _, each in self._places}

    @property
    def ids(self) -> set[int]:
        """The identities of the tensors."""
        return set(self._values)

    def put_back(self) -> None:
        """Give the model its buffers."""
        for buffers, name, buffer in self._places:
            if name in buffers:
                buffers[name] = buffer
        for buffer, value in self._values.values():
            put_back(buffer, value)


@final
class Weights:
    """The storage of every parameter of a model, which a cast leaves alone."""

    def __init__(self, model: nn.Module) -> None:
        self.saved = [(each, each.data) for each in model.parameters()]

    def are(self, others: Weights) -> bool:
        """Whether the others are the same storages; of sharded weights nothing tells."""
        pairs = list(zip(self.saved, others.saved, strict=False))
        if any(is_traceable_wrapper_subclass(each) for _, each in self.saved):
            return False
        same = all(a.data_ptr() == b.data_ptr() for (_, a), (_, b) in pairs)
        return len(self.saved) == len(others.saved) and same

    def put_back(self) -> None:
        """Every parameter with its storage."""
        for parameter, data in self.saved:
            put_data(parameter, data)


def put_data(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter the storage that it had. A sharded one is an object around its part, which
    an assignment to `data` does not reach.
    """
    if is_traceable_wrapper_subclass(data):
        torch.utils.swap_tensors(parameter, nn.Parameter(data, parameter.requires_grad))
    else:
        parameter.data = data


@torch.no_grad()
def put_back(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor the values that it had, in place where it can hold them."""
    if _same(tensor, value):
        return
    if tensor.shape == value.shape and tensor.dtype == value.dtype:
        tensor.copy_(value)
    else:
        tensor.data = value.clone()
