"""The loss without a model: its value is torch's own, and its budget follows the precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attncheck.numerics import losses
from attncheck.numerics.losses import IGNORED, cross_entropy

LABELS_BT = torch.tensor([[3, 1, 4, 1, 5], [2, IGNORED, IGNORED, 0, IGNORED]])


@pytest.mark.parametrize(
    ("logits", "loss", "least", "most"),
    [
        (torch.float64, torch.float64, 1e-16, 1e-13),
        (torch.float32, torch.float64, 1e-8, 1e-4),
        (torch.float64, torch.float32, 1e-8, 1e-4),
        (torch.float64, torch.bfloat16, 1e-3, 1.0),
    ],
)
def test_the_budget_is_that_of_the_coarser_precision(
    logits: torch.dtype, loss: torch.dtype, least: float, most: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    logits_BTV = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64).to(logits)
    found = cross_entropy(logits_BTV, LABELS_BT, 1, dtype=loss)
    want = F.cross_entropy(logits_BTV[:, :-1].double().flatten(0, 1), LABELS_BT[:, 1:].flatten())
    assert found.labels == 5
    assert found.value == pytest.approx(float(want), rel=1e-14)
    assert least < found.budget < most


def test_a_vocabulary_longer_than_a_stretch_gives_the_same_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits_BTV = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
    whole = cross_entropy(logits_BTV, LABELS_BT, 1)
    monkeypatch.setattr(losses, "SLICE", 4)
    assert cross_entropy(logits_BTV, LABELS_BT, 1) == whole


def test_labels_that_are_all_ignored_give_no_loss() -> None:
    with pytest.raises(ValueError, match="no label counts"):
        cross_entropy(torch.zeros(1, 3, 4), torch.full((1, 3), IGNORED), 1)
