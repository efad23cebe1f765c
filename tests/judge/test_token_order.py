"""Slots in the order of their tokens: a ring buffer is read like any other cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.judge.token_order import TokenOrder

TOKENS = torch.arange(6 * 4, dtype=torch.float64).reshape(1, 1, 6, 4)


def kernel(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    scores = query @ key.mT + (0 if mask is None else mask)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def call(new: list[int], slots: list[int], mask: Tensor | None = None) -> AttentionCall:
    """The call of these new tokens on these slots."""
    key = TOKENS[:, :, slots]
    return AttentionCall(nn.Module(), TOKENS[:, :, new] / 9, key, key + 1, mask, {}, kernel)


def test_a_ring_is_turned_back_and_computes_the_same() -> None:
    order = TokenOrder()
    first = call([0, 1, 2], [0, 1, 2])
    assert order.applied("a", first) is first
    # token 3 has taken the slot of token 0; the mask hides token 1
    ring = call([3], [3, 1, 2], torch.tensor([[[[0.0, -1e9, 0.0]]]], dtype=torch.float64))
    turned = order.applied("a", ring)
    assert turned.key_BGSD.tolist() == TOKENS[:, :, [1, 2, 3]].tolist()
    assert turned.value_BGSD.tolist() == (TOKENS[:, :, [1, 2, 3]] + 1).tolist()
    assert turned.mask is not None
    assert turned.mask.tolist() == [[[[-1e9, 0.0, 0.0]]]]
    assert torch.equal(turned.run()[0], ring.run()[0])
    behind = call([4, 5], [3, 1, 2, 4, 5], torch.zeros(1, 1, 2, 5, dtype=torch.float64))
    assert order.applied("a", behind).key_BGSD.tolist() == TOKENS[:, :, 1:].tolist()


def test_what_shows_no_order_is_left_as_it_is() -> None:
    order = TokenOrder()
    order.applied("a", call([0, 1, 2], [0, 1, 2]))
    several = call([3, 4], [3, 4, 2], torch.zeros(1, 1, 2, 3, dtype=torch.float64))
    assert order.applied("a", several) is several
    alike = call([3], [1, 1, 3])
    assert order.applied("a", alike) is alike
