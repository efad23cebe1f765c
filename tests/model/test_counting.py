"""Whether a forward counts positions, however it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attncheck.model.counting import counts

T, W = 6, 4
IDS = torch.arange(T)[None] % 5


class Net(nn.Module):
    """A table of tokens, and something done with what it gives."""

    def __init__(self, after: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(5, W), nn.Embedding(T, W)
        self.register_buffer("angles", torch.ones(T, W))
        self.after = after

    def forward(self, ids: Tensor) -> Tensor:
        return self.after(self, self.tokens(ids))


def scanned(net: Net, x: Tensor) -> Tensor:
    state, kept = torch.zeros_like(x[:, 0]), []
    for at in range(x.shape[1]):
        state = 0.5 * state + x[:, at]
        kept.append(state)
    return torch.stack(kept, 1).cumsum(-1)


WAYS: list[tuple[Callable[[Net, Tensor], Tensor], bool]] = [
    (scanned, False),
    (lambda net, x: (x @ x.mT).masked_fill(torch.ones(T, T).triu(1).bool(), 0) @ x, False),
    (lambda net, x: x + torch.arange(x.shape[1])[:, None], True),
    (lambda net, x: x + net.places(torch.ones(1, T, dtype=torch.long).cumsum(1) - 1), True),
    (lambda net, x: x + net.places.weight[: x.shape[1]], True),
    (lambda net, x: x * net.angles, True),
]


@pytest.mark.parametrize(("after", "expected"), WAYS)
def test_a_forward_that_counts_is_told_from_one_that_only_goes_on(
    after: Callable[[Net, Tensor], Tensor], expected: bool
) -> None:
    net = Net(after)
    assert counts(net, IDS, lambda: net(IDS)) is expected


def test_what_counts_outside_the_model_is_not_its_own() -> None:
    net = Net(scanned)
    assert not counts(net, IDS, lambda: (torch.arange(T), net(IDS)))
