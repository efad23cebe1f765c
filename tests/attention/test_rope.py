"""Rotating states by rotary tables, and recording and replacing the tables of a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attncheck.attention.rope import (
    cos_sin,
    cos_sin_in,
    is_rotation,
    recorded_tables,
    replaced_tables,
    rotate,
)


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


class Rotary(nn.Module):
    """Tables that depend on the length of the call."""

    def forward(self, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
        length = ids_BT.shape[1]
        return cos_sin(torch.tensor([1.0, 0.1]) / length, length, torch.float32)


def test_tables_are_recorded_and_others_replace_them() -> None:
    model = nn.ModuleDict({"rotary": Rotary(), "other": nn.Linear(2, 2)})
    with recorded_tables(model) as long:
        model["rotary"](torch.zeros(1, 8))
    assert [cos.shape for cos, _ in long["rotary"]] == [(1, 8, 4)]
    with replaced_tables(model, long, 3, 6):
        cos, _ = model["rotary"](torch.zeros(1, 3))
    torch.testing.assert_close(cos, long["rotary"][0][0][:, 3:6])
    assert not torch.equal(model["rotary"](torch.zeros(1, 3))[0], cos)


def test_a_rotation_has_squares_that_add_up_to_one_number() -> None:
    cos, sin = cos_sin(torch.tensor([1.0, 0.1]), 5, torch.float32)
    assert is_rotation((2 * cos, 2 * sin))
    assert not is_rotation((cos, 2 * sin))
    assert not is_rotation((cos, sin, cos))
    assert cos_sin_in([cos, sin]) is None
    ones = torch.ones(1, 3, 4)
    assert is_rotation((ones, torch.zeros(1, 3, 4)))
    assert not is_rotation((ones, torch.arange(12.0).reshape(1, 3, 4)))
    assert not is_rotation(ones)
