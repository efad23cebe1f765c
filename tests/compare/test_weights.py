"""How weights differ: the same rows in another order, an adapter, or noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attncheck.compare import weights


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda rows: weights.interleaved(rows, 4), "halves of 4 heads interleaved"),
        (
            lambda rows: weights.taken_apart(weights.interleaved(rows, 2), 8),
            "interleaved for 2 heads and taken apart for 8",
        ),
        (lambda rows: torch.cat([rows[5:], rows[:5]]), "the same rows in another order"),
    ],
)
def test_rows_in_another_order_are_told_from_other_rows(
    order: Callable[[Any], Any], said: str
) -> None:
    matrix = torch.randn(96, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (found,) = [weights.difference("w", matrix, matrix[order(torch.arange(96))])]
    assert (found.kind, said in found.words) == ("order", True)
    assert (
        weights.difference(
            "w", matrix, matrix + torch.randn(96, 8, dtype=torch.float64) * 0.05
        ).kind
        == "noise"
    )
