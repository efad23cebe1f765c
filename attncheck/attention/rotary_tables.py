"""How much the rounding of stored tables matters: sine and cosine tables, decays, whatever is
looked up by position.

Two passes that read different entries of one table differ by the rounding with which the entries
were stored, in float32 as a rule, however precisely the model computes afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

SEED = 3


@contextlib.contextmanager
def nudged(model: nn.Module) -> Iterator[None]:
    """Every entry of every stored table moved up or down by one rounding of the dtype it was made
    in, for a while.
    """
    generator = torch.Generator().manual_seed(SEED)
    tables = stored_tables(model)
    saved = [table.clone() for table in tables]
    try:
        for table in tables:
            born = torch.float32 if table.dtype == torch.float64 else table.dtype
            sign = (
                torch.randint(2, table.shape, generator=generator).to(table.device, table.dtype) * 2
                - 1
            )
            rounded = (
                table != table.round()
            )  # whole numbers (a mask of 0 and 1, a smallest float) are stored exactly
            table.mul_(1 + torch.finfo(born).eps * sign * rounded)
        yield
    finally:
        for table, before in zip(tables, saved, strict=True):
            table.copy_(before)


def stored_tables(model: nn.Module) -> list[Tensor]:
    """Floating buffers and frozen parameters with at least two axes: nothing that is trained, no
    list of frequencies.

    Where most parameters are frozen (under an adapter, in quantised weights), being frozen does not
    mark a table; nor does it where the numbers are elsewhere until their layer runs, since bringing
    them in and out freezes them.
    """
    weights = [parameter for parameter in model.parameters() if parameter.device.type != "meta"]
    still = [parameter.data for parameter in weights if not parameter.requires_grad]
    frozen = (
        still
        if 2 * sum(each.numel() for each in still) < sum(each.numel() for each in weights)
        else []
    )
    return [
        t
        for t in (*model.buffers(), *frozen)
        if t.is_floating_point() and t.ndim >= 2 and sum(n > 1 for n in t.shape) > 1
    ]
