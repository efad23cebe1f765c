"""What a model keeps in buffers between two calls: rotary tables, masks, counters, and what it had
better not keep.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every buffer by name."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def changed(model: nn.Module, saved: dict[str, Tensor]) -> list[str]:
    """The names of the buffers that are not what they were, or were not there, in order."""
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


def put_buffers_back(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Give a model copies of the buffers that it had."""
    for path, value in saved.items():
        home, _, name = path.rpartition(".")
        module = model.get_submodule(home)
        if name in module._buffers:
            module._buffers[name] = value.clone()
