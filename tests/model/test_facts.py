"""What a config says of a model, read by its fields."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers

from attncheck.model.facts import (
    Boundary,
    boundaries_of,
    configs_in,
    first_int,
    read_facts,
    width_of_logits,
)


def test_configs_inside_a_config_are_found_with_it() -> None:
    config = transformers.LlavaConfig()
    assert [each.model_type for each in configs_in(config)] == [
        "llava",
        "clip_vision_model",
        "llama",
    ]


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("tables", "lengths"),
    [
        ({"sliding_attention": PLAIN, "full_attention": DYNAMIC}, (64,)),
        ({"sliding_attention": PLAIN, "full_attention": PLAIN}, ()),
        ({"full_attention": {**PLAIN, "original_max_position_embeddings": 16}}, (16,)),
        ({"full_attention": {**PLAIN, "original_max_position_embeddings": 0}}, ()),
    ],
)
def test_one_dynamic_table_of_several_is_a_switch(
    tables: dict[str, object], lengths: tuple[int, ...]
) -> None:
    config = transformers.PretrainedConfig()
    config.rope_parameters = tables
    assert boundaries_of(config, 64) == tuple(
        Boundary(kind="rope switch", length=each) for each in lengths
    )


class Counted(torch.nn.Module):
    """Logits of a model that keeps its embedding in a plain parameter; or something else."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Zeros of one shape."""
        if not self.shape:
            raise ValueError("two arguments, please")
        return torch.zeros(self.shape)


@pytest.mark.parametrize(("shape", "width"), [((1, 2, 50), 50), ((2, 50), 0), ((), 0)])
def test_the_width_of_logits_is_counted_where_there_are_any(
    shape: tuple[int, ...], width: int
) -> None:
    assert width_of_logits(Counted(shape)) == width


def test_the_first_field_that_holds_a_positive_integer_counts() -> None:
    config = transformers.PretrainedConfig()
    config.flag, config.empty, config.one, config.two = True, 0, 1, 2
    assert first_int(config, ("missing", "flag", "empty", "one", "two")) == 1
    assert first_int(config, ("missing", "flag", "empty")) is None


class Blocks(torch.nn.Module):
    """Returns logits for rows of at most `most` tokens."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.config, self.most = SimpleNamespace(block_size=8, vocab_size=16), most

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Zeros, or an error."""
        assert ids.shape[1] <= self.most
        return torch.zeros(*ids.shape, 16)


@pytest.mark.parametrize(("most", "context"), [(8, 8), (64, None)])
def test_a_block_is_the_context_where_no_longer_row_is_taken(
    most: int, context: int | None
) -> None:
    assert read_facts(Blocks(most)).context == context


def test_a_block_below_the_context_is_a_length_to_cross() -> None:
    config = transformers.PretrainedConfig()
    config.block_size = 8
    assert boundaries_of(config, 64) == (Boundary(kind="chunk", length=8),)
    assert boundaries_of(config, 8) == ()
