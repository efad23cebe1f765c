"""Tables that a model keeps and looks up by position (sines and cosines, decays), and the effect of
their rounding.

Two passes that read different entries of one table differ by the rounding of those entries, mostly
in float32, however precisely the model computes afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

SEED = 3


@contextlib.contextmanager
def nudged(model: nn.Module) -> Iterator[None]:
    """While active, every entry of every stored table is moved up or down by one rounding of the
    dtype that it was computed in.
    """
    generator = torch.Generator().manual_seed(SEED)
    tables = stored_tables(model)
    saved = [table.clone() for table in tables]
    try:
        for table in tables:
            drawn = torch.randint(2, table.shape, generator=generator).to(table)
            # whole numbers (a mask of 0 and 1, a smallest float) are stored exactly
            rounded = table != table.round()
            table.mul_(1 + torch.finfo(made_in(table)).eps * (2 * drawn - 1) * rounded)
        yield
    finally:
        for table, before in zip(tables, saved, strict=True):
            table.copy_(before)


def made_in(table: Tensor) -> torch.dtype:
    """The narrowest dtype that holds every entry of a table: what it was made in, or cast to once,
    whatever it is stored in now.
    """
    narrow = (torch.bfloat16, torch.float16, torch.float32)
    holding = (each for each in narrow if torch.equal(table.to(each).to(table.dtype), table))
    return next(holding, table.dtype)


def stored_tables(model: nn.Module) -> list[Tensor]:
    """Floating buffers and frozen parameters with at least two axes: no trained weights and no
    lists of frequencies.

    Where most parameters are frozen (under an adapter, in quantized weights), being frozen does not
    mark a table. Offloaded parameters do not count either: moving them in and out freezes them.
    """
    weights = [parameter for parameter in model.parameters() if parameter.device.type != "meta"]
    still = [parameter.data for parameter in weights if not parameter.requires_grad]
    few = 2 * sum(each.numel() for each in still) < sum(each.numel() for each in weights)
    return [
        table
        for table in (*model.buffers(), *(still if few else []))
        if table.is_floating_point() and sum(size > 1 for size in table.shape) > 1
    ]
