"""Which operators select by value."""

from __future__ import annotations

import torch

from attncheck.numerics.selection import Selecting


def test_what_selects_by_value_is_collected() -> None:
    scores = torch.tensor([0.1, 0.3, 0.2])
    with Selecting() as selecting:
        best = scores.topk(1).indices
        order = torch.argsort(scores)
    assert best.tolist() == [1]
    assert order.tolist() == [0, 2, 1]
    assert selecting.seen == {"topk", "argsort"}


def test_arithmetic_selects_nothing() -> None:
    with Selecting() as selecting:
        torch.softmax(torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)), -1)
    assert not selecting.seen
