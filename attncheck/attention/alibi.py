"""Linear biases in place of positions (ALiBi): how steeply each head's bias rises with the key, and
how steeply it should.

Axes: B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.numerics.divergence import beyond

ROUNDINGS = 64
"""A bias rises by the same amount from key to key within this many units in the last place."""
STORED = float(torch.finfo(torch.bfloat16).eps)
"""Slopes may have been stored in the lowest precision that models use."""
LARGEST = 8.0
"""Press et al. 2022: the slopes are 2**(-8/n), 2**(-16/n), … for n heads."""
NAME = re.compile("alibi")
MAXIMUM = re.compile("alibi.*max")


def slopes_of(bias_BHTS: Tensor, allowed_BHTS: Tensor, dtype: torch.dtype) -> Tensor | None:
    """slopes_H of a bias that rises linearly with the key in every row; None for any other, or
    where rounding hides it.

    `dtype` is the one that the bias was computed in.
    """
    pairs = (allowed_BHTS[..., 1:] & allowed_BHTS[..., :-1]).expand(*bias_BHTS.shape[:-1], -1)
    rises = bias_BHTS.double().diff(dim=-1)
    highest = torch.where(pairs, rises, -math.inf).amax((0, 2, 3))
    lowest = torch.where(pairs, rises, math.inf).amin((0, 2, 3))
    if not bool(pairs.any((0, 2, 3)).all()):
        return None
    size = torch.where(allowed_BHTS, bias_BHTS.double().abs(), 0.0).max()
    slack = ROUNDINGS * torch.finfo(dtype).eps * float(size)
    slopes_H = (highest + lowest) / 2
    linear = float((highest - lowest).max()) <= slack < float(slopes_H.abs().min())
    return slopes_H if linear else None


def paper_slopes(heads: int, largest: float) -> Tensor:
    """slopes_H of the paper; where the heads are no power of two, those of the power below and
    every other one of the next.
    """
    below = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-largest * (head + 1) / below) for head in range(below)]
    rest = [2 ** (-largest * (2 * head + 1) / (2 * below)) for head in range(heads - below)]
    return torch.tensor(first + rest, dtype=torch.float64)


def promised_slopes(config: Any, module: nn.Module, heads: int) -> Tensor | None:
    """slopes_H where the config says `alibi`, or the module's source has a function of that name;
    None where neither does.
    """
    fields = list(_fields(config))
    said = any(
        bool(value) for name, value in fields if NAME.search(name) and not MAXIMUM.search(name)
    )
    home = sys.modules.get(type(module).__module__)
    built = (
        any(NAME.search(name) and callable(value) for name, value in vars(home).items())
        if home
        else False
    )
    if not said and not built:
        return None
    largest = next(
        (
            value
            for name, value in fields
            if MAXIMUM.search(name) and isinstance(value, (int, float))
        ),
        LARGEST,
    )
    return paper_slopes(heads, float(largest))


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a config and of the parts one level below."""
    for name, value in vars(config).items() if config is not None else ():
        yield name, value
        below = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        yield from ((key, each) for key, each in below.items() if isinstance(key, str))


def as_promised(slopes_H: Tensor, promised_H: Tensor, scale: float) -> Tensor | None:
    """None where slopes are the promised ones; else what they should be. Some models scale their
    biases with the scores.
    """
    factor = min(
        (1.0, scale),
        key=lambda each: abs(math.log(float((slopes_H / promised_H).abs().median()) / each)),
    )
    wanted_H = promised_H.to(slopes_H) * factor
    return wanted_H if beyond(slopes_H / wanted_H, 1.0, STORED) else None
