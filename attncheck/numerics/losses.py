"""Cross entropy of labels, computed apart from any model, with the rounding of the loss measured beside it.

Axes: B batch, T positions, V vocabulary, N labels that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import SLICE

IGNORED = -100


@final
@dataclass(frozen=True)
class Loss:
    """The mean (or the sum divided by `items`) in float64, how many labels counted, and what rounding explains."""

    value: float
    labels: int
    budget: float


def cross_entropy(
    logits_BTV: Tensor, labels_BT: Tensor, shift: int, items: int | None = None, dtype: torch.dtype = torch.float64
) -> Loss:
    """The loss where the logits at position t are trained on the label at t + `shift`; labels of -100 do not count.

    `dtype` is what the loss to be compared came in: one that was added up in half precision is no better than that.

    Raises:
        ValueError: no label counts.
    """
    length = labels_BT.shape[1]
    target_N = labels_BT[:, shift:].flatten()
    rows_NV = logits_BTV[:, : length - shift].flatten(0, 1)
    kept_N = target_N != IGNORED
    count = int(kept_N.sum())
    if not count:
        raise ValueError("no label counts")
    plain = torch.float64 if logits_BTV.dtype == torch.float64 else torch.float32
    exact = float(_surprise(rows_NV, target_N, kept_N, torch.float64).sum()) / (items or count)
    backwards = float(_surprise(rows_NV, target_N, kept_N, plain).flip(0).sum()) / (items or count)
    coarsest = max(torch.finfo(plain).eps, torch.finfo(dtype).eps)
    least = coarsest * (float(rows_NV.abs().max()) + abs(exact) * (items or count) / count)
    return Loss(exact, count, HEADROOM * max(abs(backwards - exact), least))


def _surprise(rows_NV: Tensor, target_N: Tensor, kept_N: Tensor, dtype: torch.dtype) -> Tensor:
    """-log p of each label that counts; some rows at a time, since a whole batch in float64 would be many times its logits."""
    at_N = kept_N.nonzero()[:, 0]
    parts = torch.split(at_N, max(1, SLICE // rows_NV.shape[1]))
    return torch.cat([-rows_NV[at].to(dtype).log_softmax(-1).gather(1, target_N[at][:, None])[:, 0] for at in parts])
