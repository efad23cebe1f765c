"""Numbers with fewer bits, whatever their dtype."""

from __future__ import annotations

import torch
from torch import Tensor

HALF_BITS = 8
"""Bits of a significand in bfloat16."""


def with_bits(value: Tensor, bits: int) -> Tensor:
    """Numbers with `bits` bits of significand.

    Arithmetic does it, since a cast would be promoted together with hidden float32.
    """
    significand, exponent = torch.frexp(value)
    return torch.ldexp((significand * 2**bits).round() / 2**bits, exponent).to(value.dtype)
