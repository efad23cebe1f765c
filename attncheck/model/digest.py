"""Sums that tell whether two tensors hold the same numbers, without keeping either."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attncheck.model.placement import whole


@torch.no_grad()
def digests(model: nn.Module) -> dict[str, Tensor]:
    """Four sums of every parameter, in float64: equal weights have equal ones whatever the release
    that loaded them.
    """
    return {name: digest(value) for name, value in model.named_parameters()}


def digest(value: Tensor) -> Tensor:
    """Sum, sum of sizes, sum of squares, and a sum weighted by place, in float64."""
    flat = whole(value.detach()).double().flatten().cpu()
    place = torch.arange(flat.numel(), dtype=torch.float64) % 8191
    return torch.stack([flat.sum(), flat.abs().sum(), flat.square().sum(), (flat * place).sum()])


def same_digest(left: Tensor, right: Tensor, slack: float) -> bool:
    """Whether two digests agree up to `slack`, relative to the sizes of the sums."""
    size, squares = max(float(left[1]), float(right[1]), 1e-30), max(float(left[2]), 1e-30)
    limits = torch.tensor([size, size, squares, 8191 * size], dtype=torch.float64) * slack
    return bool(((left - right).abs() <= limits).all())
