"""Numbers of a config at which a model changes what it does: found by trying, and crossed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attncheck.core.settings import Settings
from attncheck.model.facts import Boundary, read_facts
from attncheck.targets.load import load
from attncheck.targets.shrink.thresholds import with_thresholds


class SteppedConfig(transformers.PretrainedConfig):
    """A config with a number that decides from where on, one that decides always, and a size."""

    model_type = "stepped"

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.vocab_size, self.switch_after, self.strength, self.rows = 64, 900, 500, 300


class Stepped(transformers.PreTrainedModel):
    """Adds one to the logits from a position on."""

    config_class = SteppedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.table = nn.Embedding(64, 64)
        self.size = nn.Parameter(torch.zeros(config.rows))

    def forward(self, input_ids: Any) -> Any:
        later_T = torch.arange(input_ids.shape[1]) >= self.config.switch_after
        logits = self.table(input_ids) * self.config.strength + later_T[None, :, None]
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def drawn(config: Any) -> nn.Module:
    torch.manual_seed(0)
    return Stepped(config)


def test_only_a_number_that_decides_from_where_on_becomes_small() -> None:
    config = SteppedConfig()
    model = with_thresholds(config, drawn)
    assert (model.config.switch_after, model.config.strength, model.config.rows) == (8, 500, 300)
    assert config.switch_after == 900, "the config that was given stays"
    assert Boundary(kind="threshold", length=8) in read_facts(model).boundaries


@pytest.mark.parametrize(
    ("target", "field", "length"),
    [
        ("config:llama4_text", "floor_scale", 8),
        ("config:minimax", "block_size", 8),
        ("config:seq2seq/switch_transformers", "expert_capacity", 13),
    ],
)
def test_inputs_cross_what_was_found(target: str, field: str, length: int) -> None:
    subject = load(target, Settings())
    assert getattr(subject.config, field) == 8
    assert {length - 1, length, length + 1} <= set(subject.inputs.cuts)


def test_a_model_without_such_numbers_is_as_before() -> None:
    subject = load("config:llama", Settings())
    assert (subject.inputs.length, subject.inputs.boundaries) == (24, ())
