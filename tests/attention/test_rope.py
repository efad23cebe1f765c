"""Rotating states by rotary tables."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attncheck.attention.rope import rotate


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("pairing", ["half", "pairs"])
def test_rotations_keep_lengths_and_depend_on_distance_only(pairing: str) -> None:
    angles = torch.arange(7, dtype=torch.float64)[:, None] * torch.tensor(
        [1.0, 0.1], dtype=torch.float64
    )
    cos, sin = (f(torch.cat([angles, angles], -1))[None] for f in (torch.cos, torch.sin))
    same = drawn(1, 1, 1, 6).expand(1, 1, 7, 6)
    moved = rotate(same, cos, sin, pairing)  # type: ignore[arg-type]
    torch.testing.assert_close(moved.norm(dim=-1), same.norm(dim=-1))
    products = (moved @ moved.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(products[2, 0], products[5, 3])
    assert abs(float(products[2, 0] - products[3, 0])) > 1e-3
    torch.testing.assert_close(moved[..., 4:], same[..., 4:])


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="another length or width"):
        rotate(drawn(1, 1, 3, 4), drawn(1, 5, 4), drawn(1, 5, 4), "half")
