"""The label that does not count, asked of a loss written by hand."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.core.errors import Unsupported
from attncheck.model.loss import ignored_label
from attncheck.model.subject import Subject


class Scored(nn.Module):
    """Logits, and a loss that leaves out one label."""

    def __init__(self, ignored: int) -> None:
        super().__init__()
        self.table, self.ignored = nn.Embedding(64, 64), ignored

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.table(idx)
        if targets is None:
            return logits, None
        flat = logits.flatten(0, 1), targets.flatten()
        return logits, F.cross_entropy(*flat, ignore_index=self.ignored)


@pytest.mark.parametrize("label", [-100, -1])
def test_the_own_label_is_found_by_trying(label: int) -> None:
    assert ignored_label(Subject.of(Scored(label).eval())) == label


def test_a_loss_that_leaves_out_neither_is_said() -> None:
    with pytest.raises(Unsupported, match="takes no label that does not count: neither -100 nor"):
        ignored_label(Subject.of(Scored(0).eval()))


def test_labels_of_the_library_are_not_tried(subject: Subject) -> None:
    assert ignored_label(subject) == -100
