"""Gradients of the logits with respect to the embeddings of the tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attncheck.model.gradients import input_gradient
from attncheck.model.subject import Subject
from tests.conftest import tiny_llama


class TableWithScale(nn.Embedding):
    """A quantised table of embeddings: it returns its scale beside them."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The embeddings and their scale."""
        return super().forward(ids), torch.ones(1)


def test_a_table_that_returns_its_scale_too_has_the_same_gradient() -> None:
    usual, quantised = tiny_llama(), tiny_llama()
    quantised.load_state_dict(usual.state_dict())
    table = quantised.model.embed_tokens
    scaled = TableWithScale(*table.weight.shape, _weight=table.weight.data)
    quantised.model.embed_tokens = scaled
    taken = quantised.model.forward

    def first_of_two(input_ids: Tensor | None = None, **given: object) -> object:
        embedded = scaled(input_ids)[0]
        return taken(**{**given, "inputs_embeds": embedded})

    quantised.model.forward = first_of_two
    right, found = (
        input_gradient(Subject.of(each, "llama", dtype="float64")) for each in (usual, quantised)
    )
    assert torch.equal(right, found)
    assert right.abs().max() > 0
