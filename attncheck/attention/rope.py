"""Rotary position embeddings: read, record and replace a model's tables, and rotate states by them.

Axes: B batch, H heads, T positions, D head width, R rotary width, P pairs of channels.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attncheck.core.measurement import BEYOND_ROUNDING
from attncheck.numerics.hooks import hooked

Pairing = Literal["half", "pairs"]
"""Which channels rotate together: those of both halves, or neighbours."""
CosSin = tuple[Tensor, Tensor]
"""Cosines and sines, (B, T, R) each."""
Tables = dict[str, list[CosSin]]
"""What each rotary module returned during one forward, in order."""


def cos_sin_in(value: Any) -> CosSin | None:
    """A pair of rotary tables, if the value has the form of one."""
    pair = isinstance(value, tuple) and len(value) == 2
    if not pair or not all(isinstance(each, Tensor) for each in value):
        return None
    cos, sin = value
    fits = cos.shape == sin.shape and cos.is_floating_point() and cos.ndim >= 2
    return (cos, sin) if fits else None


def is_rotation(value: Any) -> bool:
    """Whether a value is a (B, T, R) cos and sin: their squares add up to one number everywhere."""
    tables = cos_sin_in(value)
    if tables is None or tables[0].ndim != 3:
        return False
    square_BTR = tables[0].double() ** 2 + tables[1].double() ** 2
    rounding = BEYOND_ROUNDING * torch.finfo(tables[0].dtype).eps
    return float(square_BTR.max() - square_BTR.min()) <= rounding


def inv_freq_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The rotary frequencies that the model keeps, by the name of their buffer."""
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] == "inv_freq"
    }


def cos_sin(inv_freq_P: Tensor, length: int, dtype: torch.dtype) -> CosSin:
    """(1, T, R) tables for positions from 0 on, for halves that rotate together."""
    positions_T1 = torch.arange(length, device=inv_freq_P.device)[:, None]
    angles_1TR = torch.cat([positions_T1 * inv_freq_P] * 2, -1)[None]
    return angles_1TR.cos().to(dtype), angles_1TR.sin().to(dtype)


def rotate(states_BHTD: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """States rotated by tables of width R <= D; channels beyond R stay.

    Raises:
        ValueError: the tables do not fit the states.
    """
    width = cos.shape[-1]
    if width > states_BHTD.shape[-1] or cos.shape[-2] != states_BHTD.shape[-2]:
        raise ValueError("the rotary tables have another length or width than the states")
    cos_BHTR, sin_BHTR = (
        table.reshape(-1, 1, *table.shape[-2:]) if table.ndim < 4 else table for table in (cos, sin)
    )
    part, rest = states_BHTD[..., :width], states_BHTD[..., width:]
    if pairing == "half":
        first, second = part.chunk(2, -1)
        quarter = torch.cat([-second, first], -1)
    else:
        quarter = torch.stack([-part[..., 1::2], part[..., ::2]], -1).flatten(-2)
        cos_BHTR, sin_BHTR = (
            t[..., : width // 2].repeat_interleave(2, -1) for t in (cos_BHTR, sin_BHTR)
        )
    return torch.cat([part * cos_BHTR + quarter * sin_BHTR, rest], -1)


@contextlib.contextmanager
def recorded_tables(model: nn.Module) -> Iterator[Tables]:
    """While active, collect the tables that rotary modules return, of the first batch row."""
    found: Tables = {}

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_rotation(output):
            # a clone, since some models write later tables into the same memory
            found.setdefault(name, []).append((output[0][:1].clone(), output[1][:1].clone()))

    with _after_rotary_modules(model, hook):
        yield found


@contextlib.contextmanager
def replaced_tables(model: nn.Module, tables: Tables, start: int, stop: int) -> Iterator[None]:
    """While active, rotary modules return positions start..stop of these tables, forward after
    forward.
    """
    turns = {name: itertools.cycle(each) for name, each in tables.items()}

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> Any:
        if name not in turns or not is_rotation(output):
            return output
        return tuple(
            each[:, start:stop].expand(like.shape).to(like.dtype)
            for each, like in zip(next(turns[name]), output, strict=True)
        )

    with _after_rotary_modules(model, hook):
        yield


def _after_rotary_modules(model: nn.Module, hook: Any) -> contextlib.AbstractContextManager[None]:
    """Rotary modules are among those that hold no parameters."""
    modules = model.named_modules()
    bare = [(name, each) for name, each in modules if next(each.parameters(), None) is None]
    return hooked(each.register_forward_hook(partial(hook, name)) for name, each in bare)
