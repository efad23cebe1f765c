"""Linear biases in place of positions (ALiBi): the slope of each head, observed and expected.

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

from attncheck.numerics.divergence import max_abs_diff

ROUNDINGS = 64
"""A bias is linear if it rises by the same amount from key to key within this many units in the
last place.
"""
STORED = float(torch.finfo(torch.bfloat16).eps)
"""Slopes may have been stored in the lowest precision that models use."""
LARGEST = 8.0
"""Press et al. 2022: the slopes are 2**(-8/n), 2**(-16/n), … for n heads."""
NAME = re.compile("alibi")
MAXIMUM = re.compile("alibi.*max")


def slopes_of(bias_BHTS: Tensor, allowed_BHTS: Tensor, dtype: torch.dtype) -> Tensor | None:
    """slopes_H of a bias, computed in `dtype`, that rises linearly with the key for every query;
    None for any other, or where rounding hides the slope.
    """
    pairs = (allowed_BHTS[..., 1:] & allowed_BHTS[..., :-1]).expand(*bias_BHTS.shape[:-1], -1)
    rises = bias_BHTS.double().diff(dim=-1)
    highest = torch.where(pairs, rises, -math.inf).amax((0, 2, 3))
    lowest = torch.where(pairs, rises, math.inf).amin((0, 2, 3))
    if not bool(pairs.any((0, 2, 3)).all()):
        return None
    # the largest bias rounds worst, and its rounding may hide how much the next one rises
    size = torch.where(allowed_BHTS, bias_BHTS.double().abs(), 0.0).max()
    slack = ROUNDINGS * torch.finfo(dtype).eps * float(size)
    slopes_H = (highest + lowest) / 2
    linear = float((highest - lowest).max()) <= slack < float(slopes_H.abs().min())
    return slopes_H if linear else None


def paper_slopes(heads: int, largest: float) -> Tensor:
    """slopes_H of the paper. Where the number of heads is no power of two, the power below gives
    the first and every other slope of the next power the rest.
    """
    below = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-largest * (head + 1) / below) for head in range(below)]
    rest = [2 ** (-largest * (2 * head + 1) / (2 * below)) for head in range(heads - below)]
    return torch.tensor(first + rest, dtype=torch.float64)


def expected_slopes(config: Any, module: nn.Module, heads: int) -> Tensor | None:
    """slopes_H where the config asks for ALiBi, or the module's source has a function named after
    it; None where neither does.
    """
    fields = list(_fields(config))
    named = (value for name, value in fields if NAME.search(name) and not MAXIMUM.search(name))
    stated = any(isinstance(value, Tensor) or bool(value) for value in named)
    home = sys.modules.get(type(module).__module__)
    source = vars(home) if home else {}
    if not stated and not any(NAME.search(name) and callable(source[name]) for name in source):
        return None
    largest = (
        float(value)
        for name, value in fields
        if MAXIMUM.search(name) and isinstance(value, (int, float))
    )
    return paper_slopes(heads, next(largest, LARGEST))


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a config and of its nested parts, one level deep."""
    for name, value in vars(config).items() if config is not None else ():
        yield name, value
        below = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        yield from ((key, each) for key, each in below.items() if isinstance(key, str))


def corrected_slopes(slopes_H: Tensor, expected_H: Tensor, scale: float) -> Tensor | None:
    """What slopes should be where they are not the expected ones; None where they are. Some models
    scale their biases with the scores, so the nearer of both factors applies.
    """
    ratio = float((slopes_H / expected_H).abs().median())
    factor = min((1.0, scale), key=lambda each: abs(math.log(ratio / each)))
    wanted_H = expected_H.to(slopes_H) * factor
    return None if max_abs_diff(slopes_H / wanted_H, 1.0) <= STORED else wanted_H
