"""Angles read off what projections gave and kernels got."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attncheck.judge.rotation_angles import observed_rotation

WIDTH = 16
LENGTH = 24
FREQUENCIES = [1.0, 0.3, 0.05, 1e-5]


def _turn(given_BHTD: Tensor, first: int, pairing: str, into: str) -> Tensor:
    """Turned channel by channel, as it is defined."""
    handed_BHTD, count = given_BHTD.clone(), len(FREQUENCIES)
    for pair, frequency in enumerate(FREQUENCIES):
        left, right = (pair, pair + count) if pairing == "half" else (2 * pair, 2 * pair + 1)
        to_left, to_right = (pair, pair + count) if into == "half" else (2 * pair, 2 * pair + 1)
        for position in range(given_BHTD.shape[2]):
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            x, y = (given_BHTD[:, :, position, first + each] for each in (left, right))
            handed_BHTD[:, :, position, first + to_left] = x * cos - y * sin
            handed_BHTD[:, :, position, first + to_right] = x * sin + y * cos
    return handed_BHTD


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("first", [0, 8])
@pytest.mark.parametrize(
    ("pairing", "into"), [("half", "half"), ("pairs", "pairs"), ("pairs", "half")]
)
def test_pairs_and_angles_are_found_in_every_layout(
    heads: int, first: int, pairing: str, into: str
) -> None:
    torch.manual_seed(0)
    given_BHTD = torch.randn(1, heads, LENGTH, WIDTH, dtype=torch.float64)
    stages = {"proj": given_BHTD.transpose(1, 2).flatten(2), "other": torch.randn(1, LENGTH, WIDTH)}
    found = observed_rotation(
        3.0 * _turn(given_BHTD, first, pairing, into), stages, 2 * len(FREQUENCIES), None
    )
    assert found is not None
    assert found.stage == "proj"
    assert found.inv_freq_P.tolist() == pytest.approx(FREQUENCIES, abs=1e-12)
    assert found.gain == pytest.approx(3.0)
    assert found.layout == (first, 8, pairing, into)


def test_channels_that_are_handed_on_are_not_turned_and_others_come_from_nowhere() -> None:
    given_BHTD = torch.randn(1, 2, LENGTH, WIDTH, dtype=torch.float64)
    stages = {"proj": given_BHTD.transpose(1, 2)}
    still = observed_rotation(0.5 * given_BHTD, stages, WIDTH, None)
    assert still is not None
    assert still.pairs == 0
    assert observed_rotation(torch.randn_like(given_BHTD), stages, WIDTH, None) is None
