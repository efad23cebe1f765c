"""batch-rows: rows that read each other are caught, at once and on a cache."""

from __future__ import annotations

import pytest
import torch
from probing import HEALTHY, caught_by, finding, loaded
from torch import Tensor, nn

from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass_with_both_controls(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "batch-rows")
    assert found.verdict is Verdict.PASS
    assert [(control.fault, control.detected) for control in found.controls] == [
        ("rows-mixed", True),
        ("cache-reorder", True),
    ]


@pytest.mark.parametrize(
    ("fault", "where"),
    [("rows-mixed", "another row changed"), ("cache-reorder", "alone, decoded on one cache")],
)
def test_mixed_rows_are_caught_where_they_mix(subject: Subject, fault: str, where: str) -> None:
    broken = caught_by(subject, "batch-rows", fault)
    assert broken is not None
    assert broken.name == where


def test_a_state_lost_between_chunks_is_not_taken_for_mixed_rows() -> None:
    assert finding(loaded("config:mamba"), "batch-rows").verdict is Verdict.PASS


class OverTheBatch(nn.Module):
    """Attention without `batch_first`: tokens read the other rows and no other token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.attention = nn.MultiheadAttention(16, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        """logits_BTV."""
        x = self.embed(input_ids)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


def test_rows_are_asked_of_a_model_that_reads_no_other_token() -> None:
    found = finding(Subject.of(OverTheBatch().double(), "rows", dtype="float64"), "batch-rows")
    assert found.verdict is Verdict.FAIL
