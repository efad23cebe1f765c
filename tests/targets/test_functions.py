"""A function from ids to logits is a model, with the modules that it closes over."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.model.subject import Subject
from attncheck.targets.functions import FunctionModel, as_module


def test_a_function_is_called_and_its_modules_are_cast() -> None:
    table, head = nn.Embedding(40, 8), nn.Linear(8, 40)

    def logits(ids: Tensor) -> Tensor:
        found: Tensor = head(table(ids))
        return found

    made = as_module(logits)
    assert isinstance(made, FunctionModel)
    subject = Subject.of(made, "function", dtype="float64")
    assert head.weight.dtype == torch.float64
    assert subject.facts.vocab == 40
    assert subject.passes.call(((3, 4, 5),)).logits_BTV.shape == (1, 3, 40)


def test_modules_and_other_things_are_left_alone() -> None:
    module = nn.Linear(2, 2)
    assert as_module(module) is module
    assert as_module(7) == 7


def test_tensors_in_containers_are_cast_where_the_function_reads_them() -> None:
    weights = {"layers.0.weight": torch.rand(40, 8), "head": [torch.rand(8, 40)]}
    made = as_module(partial(_looked_up, w=weights))
    assert set(dict(made.named_parameters())) == {"layers.0.weight", "head.0"}
    subject = Subject.of(made, "function", dtype="float64")
    assert weights["layers.0.weight"].dtype == torch.float64  # type: ignore[union-attr]
    assert subject.passes.call(((3, 4, 5),)).logits_BTV.dtype == torch.float64


def _looked_up(ids: Tensor, *, w: Any) -> Tensor:
    found: Tensor = w["layers.0.weight"][ids] @ w["head"][0]
    return found


def test_a_module_of_plain_tensors_has_parameters() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.rand(40, 40)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table[ids]

    bare = Bare()
    made = as_module(bare)
    assert [name for name, _ in made.named_parameters()] == ["table"]
    Subject.of(made, "bare", dtype="float64")
    assert bare.table.dtype == torch.float64
