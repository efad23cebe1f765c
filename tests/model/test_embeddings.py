"""The tables of a model are found by what is looked up in them."""

from __future__ import annotations

import torch
from conftest import tiny_llama
from torch import Tensor, nn

from attncheck.model.embeddings import position_rows
from attncheck.model.facts import read_facts


class Placed(nn.Module):
    """Tokens and learned positions, the first of them `first`."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.first, self.wte, self.wpe = first, nn.Embedding(16, 4), nn.Embedding(40, 4)
        self.kinds = nn.Embedding(2, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(self.first, self.first + input_ids.shape[1])
        embedded = self.wte(input_ids) + self.wpe(places) + self.kinds(input_ids * 0)
        return embedded @ self.wte.weight.T


def test_a_table_of_positions_says_how_long_a_row_may_be() -> None:
    assert position_rows(Placed()) == 40
    assert position_rows(Placed(2)) == 38
    assert read_facts(Placed()).context == 40


def test_rotary_models_have_no_such_table() -> None:
    assert position_rows(tiny_llama()) is None
