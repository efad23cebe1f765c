"""How much the rounding of stored tables matters: sine and cosine tables, learned positions, whatever is looked up.

Two passes that read different entries of one table differ by the rounding with which the entries were stored, in float32 as a
rule, however precisely the model computes afterwards. Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attncheck.numerics.budget import HEADROOM, Budget
from attncheck.subject.inputs import Tokens
from attncheck.subject.subject import Subject


def table_budget(subject: Subject, tokens: Tokens) -> Budget:
    """The subject's budget, widened to what one rounding of every stored table does to the logits of `tokens`."""
    born = torch.float32 if subject.dtype == torch.float64 else subject.dtype
    with torch.no_grad():
        usual_BTV = subject.passes.call(tokens, use_cache=False).logits_BTV
        with nudged(subject.model, torch.finfo(born).eps, subject.settings.seed):
            moved_BTV = subject.passes.call(tokens, use_cache=False).logits_BTV
    floor = float((moved_BTV - usual_BTV).abs().max())
    known = subject.budget
    if HEADROOM * floor <= known.value:
        return known
    source = f"stored tables, rounded in {str(born).removeprefix('torch.')}: {floor:.1e} x {HEADROOM:.0f}"
    return Budget(value=HEADROOM * floor, floor=floor, source=source)


@contextlib.contextmanager
def nudged(model: nn.Module, eps: float, seed: int) -> Iterator[None]:
    """Every entry of every stored table moved up or down by one relative `eps` for a while."""
    generator = torch.Generator().manual_seed(seed)
    tables = list(_tables(model))
    saved = [table.clone() for table in tables]
    try:
        for table in tables:
            sign = torch.randint(2, table.shape, generator=generator).to(table.device) * 2 - 1
            table.mul_(1 + eps * sign.to(table.dtype))
        yield
    finally:
        for table, before in zip(tables, saved, strict=True):
            table.copy_(before)


def _tables(model: nn.Module) -> Iterator[Tensor]:
    frozen = [parameter.data for parameter in model.parameters() if not parameter.requires_grad]
    for table in (*model.buffers(), *frozen):
        if table.is_floating_point() and table.ndim >= 2 and min(table.shape) > 1:
            yield table
