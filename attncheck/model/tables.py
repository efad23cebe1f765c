"""Tables and frequencies as they were before a cast to a narrower dtype rounded them.

`model.to(torch.bfloat16)` casts buffers as well as weights. What the rounded ones mean is a matter
of that dtype: the higher precision that decides computes with the tables that the model was made
with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from attncheck.attention.rotary_tables import stored_tables


@final
class Tables:
    """Floating buffers and frozen tables by name, from before the first cast that narrowed them."""

    def __init__(self) -> None:
        self._made: dict[str, Tensor] = {}

    def note(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Keep what a cast to `dtype` would round."""
        for name, table in _named(model).items():
            if table.device.type == "meta" or dtype.itemsize >= table.itemsize:
                continue
            if name not in self._made and not torch.equal(table.to(dtype).to(table.dtype), table):
                self._made[name] = table.detach().clone()

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        """Give a model that was cast to a wider dtype the digits that it had lost."""
        for table, made in self._rounded(model):
            if table.itemsize >= made.itemsize:
                table.copy_(made)

    @contextlib.contextmanager
    def unrounded(self, model: nn.Module) -> Iterator[None]:
        """While active, the tables of a narrow model are as wide as they were made."""
        saved = [(table, table.data, made) for table, made in self._rounded(model)]
        for table, _, made in saved:
            table.data = made
        try:
            yield
        finally:
            for table, data, _ in saved:
                table.data = data

    def _rounded(self, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """The tables that still are what a cast made of them, each with what it was."""
        found = []
        for name, table in _named(model).items():
            made = self._made.get(name)
            if made is None or made.shape != table.shape or made.device != table.device:
                continue
            narrow = (torch.bfloat16, torch.float16, torch.float32)
            if any(torch.equal(made.to(each).to(table.dtype), table) for each in narrow):
                found.append((table, made))
        return found


def _named(model: nn.Module) -> dict[str, Tensor]:
    """Floating buffers, and frozen parameters that are tables."""
    still = {each.data_ptr() for each in stored_tables(model)}
    frozen = {
        name: each
        for name, each in model.named_parameters()
        if not each.requires_grad and each.data_ptr() in still
    }
    buffers = {name: each for name, each in model.named_buffers() if each.is_floating_point()}
    return {**buffers, **frozen}
