"""A function from ids to logits is a model, with the modules that it closes over."""

from __future__ import annotations

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
