"""A forward's values are found in another forward, whatever their layout, and nowhere else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.compare.flow import taped


class Fused(nn.Module):
    """One projection, split afterwards, and fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


def test_values_are_found_in_any_layout_and_with_their_module() -> None:
    torch.manual_seed(0)
    model, x = Fused(), torch.randn(2, 6, 8, dtype=torch.float64)
    with torch.no_grad(), taped(model, 12) as tape:
        model(x)
    q, k, _ = (F.linear(x, each) for each in model.qkv.weight.chunk(3))
    q, k = q + model.qkv.bias[:8], k + model.qkv.bias[8:16]
    weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
    assert tape.find(q.transpose(1, 2), 1e-12)
    assert tape.find(weights, 1e-12), "fused attention is computed step by step"
    assert not tape.find(q + 1e-6, 1e-9)
    assert tape.find(model.qkv(x), 1e-12)[0].module == "qkv"


def test_small_errors_that_cancel_in_the_sums_are_seen() -> None:
    model, x = nn.Sequential(nn.Identity(), nn.ReLU()), torch.rand(64, 64).double() + 1
    with taped(model, 12) as tape:
        model(x)
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).double()
    assert not tape.find(x + 1e-8 * noise, 2e-9)


def test_multiples_of_a_value_are_found_with_their_factor() -> None:
    model, x = nn.Sequential(nn.ReLU()), torch.rand(4, 16).double()
    with taped(model, 12) as tape:
        model(x)
    (factor,) = tape.factors(-2 * x, 1e-9)
    assert abs(factor + 0.5) < 1e-12
