"""The rotary tables of a model, recorded and replayed where its rotary modules return them.

Axes: B batch, T positions, R rotary width.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core.finding import BEYOND_ROUNDING
from attncheck.faults.engine.trusted import Trusted
from attncheck.numerics.divergence import beyond
from attncheck.numerics.hooks import hooked

Table = tuple[Tensor, Tensor]
"""cos and sin, (B, T, R) each."""
Tables = dict[str, list[Table]]
"""What each rotary module returned during one forward, in order."""

SHORT = 2


def tables_of(trusted: Trusted, *rows: tuple[int, ...]) -> Tables:
    """The tables of the last of several forwards, run in this order after a short one."""
    passes = trusted.subject.passes
    found: Tables = {}
    with torch.no_grad():
        # A short call resets tables that a model keeps from its longest call so far.
        passes.call((trusted.subject.inputs.row[:SHORT],), use_cache=False)
        for row in rows:
            with _recording(trusted.subject.model) as found:
                passes.call((row,), use_cache=False)
    return found


def depend_on_length(trusted: Trusted) -> bool:
    """Whether the table of the same positions differs between a short call and a whole one."""
    row = trusted.subject.inputs.row
    shorter, whole = tables_of(trusted, row[: len(row) // 3]), tables_of(trusted, row)
    return any(
        not _same(one, other)
        for name in shorter
        for one, other in zip(shorter[name], whole.get(name, []), strict=False)
    )


def _same(shorter: Table, longer: Table) -> bool:
    length = shorter[0].shape[-2]
    rounding = torch.finfo(shorter[0].dtype).eps
    return not any(
        beyond(one, other[..., :length, :], BEYOND_ROUNDING * rounding)
        for one, other in zip(shorter, longer, strict=True)
    )


@contextlib.contextmanager
def _recording(model: nn.Module) -> Iterator[Tables]:
    found: Tables = {}

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_table(output):
            found.setdefault(name, []).append((output[0][:1].clone(), output[1][:1].clone()))

    with _hooked(model, hook):
        yield found


@contextlib.contextmanager
def replaying(model: nn.Module, tables: Tables, start: int, stop: int) -> Iterator[None]:
    """While active, rotary modules return positions start..stop of these tables in turn."""
    turns = {name: itertools.cycle(each) for name, each in tables.items()}

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> Any:
        if name not in turns or not is_table(output):
            return output
        return tuple(
            each[:, start:stop].expand(like.shape).to(like.dtype)
            for each, like in zip(next(turns[name]), output, strict=True)
        )

    with _hooked(model, hook):
        yield


@contextlib.contextmanager
def _hooked(model: nn.Module, hook: Any) -> Iterator[None]:
    """Hook every module without parameters: rotary embeddings have none."""
    bare = (
        (name, module)
        for name, module in model.named_modules()
        if next(module.parameters(), None) is None
    )
    with hooked(module.register_forward_hook(partial(hook, name)) for name, module in bare):
        yield


def is_table(output: Any) -> bool:
    """Whether a module returns cos and sin of each position: their squares add up to a constant."""
    if not isinstance(output, tuple) or len(output) != 2:
        return False
    cos_BTR, sin_BTR = output
    if not isinstance(cos_BTR, Tensor) or not isinstance(sin_BTR, Tensor):
        return False
    if cos_BTR.ndim != 3 or cos_BTR.shape != sin_BTR.shape or not cos_BTR.is_floating_point():
        return False
    square_BTR = cos_BTR.double() ** 2 + sin_BTR.double() ** 2
    rounding = BEYOND_ROUNDING * torch.finfo(cos_BTR.dtype).eps
    return float(square_BTR.max() - square_BTR.min()) <= rounding
