"""Cross entropy of labels, computed without any model, with the rounding of the loss measured.

Axes: B batch, T positions, V vocabulary, N labels that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import SLICE, max_abs_finite

IGNORED = -100


@final
@dataclass(frozen=True)
class Loss:
    """The mean (or the sum divided by `items`) in float64, how many labels counted, and what
    rounding explains.
    """

    value: float
    labels: int
    budget: float


def cross_entropy(
    logits_BTV: Tensor,
    labels_BT: Tensor,
    shift: int,
    items: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Loss:
    """The loss where the logits at position t are trained on the label at t + `shift`; labels of
    -100 do not count.

    `dtype` is what the loss to be compared came in: one that was added up in half precision is no
    better than that.

    Raises:
        ValueError: no label counts.
    """
    length = labels_BT.shape[1]
    target_BT, predicting_BTV = labels_BT[:, shift:], logits_BTV[:, : length - shift]
    count = int((target_BT != IGNORED).sum())
    if not count:
        raise ValueError("no label counts")
    plain = torch.float64 if logits_BTV.dtype == torch.float64 else torch.float32
    exact = float(_negative_logs(predicting_BTV, target_BT, torch.float64).sum()) / (items or count)
    backwards = float(_negative_logs(predicting_BTV, target_BT, plain).flip(0).sum()) / (
        items or count
    )
    coarsest = max(torch.finfo(plain).eps, torch.finfo(dtype).eps)
    least = coarsest * (max_abs_finite(predicting_BTV) + abs(exact) * (items or count) / count)
    return Loss(exact, count, HEADROOM * max(abs(backwards - exact), least))


def _negative_logs(logits_BTV: Tensor, target_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """-log p_N of the labels that count; some rows at a time, since a whole batch in float64 would
    be many times its logits.
    """
    row_N, at_N = (target_BT != IGNORED).nonzero(as_tuple=True)
    some = max(1, SLICE // logits_BTV.shape[2])
    parts = zip(torch.split(row_N, some), torch.split(at_N, some), strict=True)
    logs = (
        (logits_BTV[row, at].to(dtype).log_softmax(-1), target_BT[row, at]) for row, at in parts
    )
    return torch.cat([-logs_NV.gather(1, target_N[:, None])[:, 0] for logs_NV, target_N in logs])
