"""Rotary position embeddings: rotating states by tables of cosines and sines.

Axes: B batch, H heads, T positions, D head width, R rotary width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pairing = Literal["half", "pairs"]
"""Which channels rotate together: those of both halves, or neighbours."""


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
