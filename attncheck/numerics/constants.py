"""Logits that a constant holds down: the smallest finite number, -1e9 or minus infinity, put over
tokens that a model must never write.

What such a constant is rounded by says nothing about the other logits, so it must neither set their
budget nor hide what happens in them.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

HELD = 1e5
"""Times the usual logit: none that a model computes is as large, every such constant is."""
SET_ASIDE = 1024.0
"""Constants are at least as large afterwards: a softmax gives nothing to what is that low."""
SHRUNK = 2.0**24
"""Divides the logarithm of a constant's size: less than half precision resolves, since generate()
gives its logits in float32.
"""
LOWEST = -SET_ASIDE - 1e-4
"""Stands for minus infinity: lower than any finite number."""
MOST = 0.5
"""A position with a larger share of infinities is lost rather than held down."""


def without_constants(logits_BTV: Tensor) -> Tensor:
    """The logits, where a constant holds some down with a moderate number in place of it, which
    grows with the logarithm of its size: equal ones stay equal, others differ.
    """
    size_V = logits_BTV.detach().abs().flatten(0, 1).amax(0) if logits_BTV.numel() else logits_BTV
    usual = float(size_V.median()) if size_V.numel() else 0.0
    if not usual or not float(size_V.max()) > HELD * usual:
        return logits_BTV  # nearly always; also where a NaN is for the probes to count
    held_BTV = logits_BTV.detach().abs() > HELD * usual
    low_BTV = torch.isneginf(logits_BTV.detach())
    low_BTV &= low_BTV.float().mean(-1, keepdim=True) <= MOST
    size_BTV = SET_ASIDE + torch.where(held_BTV, logits_BTV, 1.0).abs().log2() / SHRUNK
    settled_BTV = torch.where(held_BTV, logits_BTV.detach().sign() * size_BTV, logits_BTV)
    return torch.where(low_BTV, torch.full_like(settled_BTV, LOWEST), settled_BTV)


def free(logits_BTV: Tensor) -> Tensor:
    """The logits with 0 in place of what stands for a constant: their own size."""
    if not logits_BTV.numel() or not float(logits_BTV.min()) <= -SET_ASIDE:
        return logits_BTV
    return torch.where(logits_BTV <= -SET_ASIDE, 0.0, logits_BTV)
