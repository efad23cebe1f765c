"""Weights under which faults show.

At the usual initialisation (standard deviation 0.02, zero biases, closed gates) attention is nearly
uniform and a leak can be as small as rounding. Every matrix is drawn again at unit gain; vectors
and state-space parameters stay near their own values.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

NEAR_THEMSELVES = re.compile(r"A_log|dt_bias|time_decay|time_first|slope|decay")
TABLES = re.compile(r"embed|wte|wpe|word_emb")
KERNEL = 4
"""A last axis this short in a three-axis weight is a convolution kernel, not a fan-in."""


def _fan_in(parameter: Tensor) -> int:
    shape = parameter.shape
    if parameter.ndim == 2:
        return int(shape[-1])
    if parameter.ndim == 3 and min(shape[-2:]) > KERNEL:
        return int(max(shape[-2:]))
    return max(1, math.prod(shape[1:]))


def amplify(model: nn.Module, seed: int) -> None:
    """Draw the weights of a model again, in place; frozen parameters (sinusoidal tables) stay."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or not parameter.requires_grad:
                continue
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim < 2 or NEAR_THEMSELVES.search(name):
                parameter.nan_to_num_(0.0).add_((0.1 * drawn).to(parameter.dtype))
            elif parameter.ndim == 2 and TABLES.search(name):
                parameter.copy_(drawn.to(parameter.dtype))
            else:
                parameter.copy_((drawn / math.sqrt(_fan_in(parameter))).to(parameter.dtype))
