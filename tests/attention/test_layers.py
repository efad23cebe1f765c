"""The layer of a module comes from itself, then from the first number of its path."""

from __future__ import annotations

import pytest
from torch import nn

from attncheck.attention.layers import (
    attention_modules,
    is_list_member,
    layer_index,
    layer_lists,
    layer_number,
)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("model.layers.3.self_attn", 3),
        ("model.layers.3.mlp.experts.7", 3),
        ("lm_head", None),
        ("h2.attn", None),
        (("layers", "12", "keys"), 12),
    ],
)
def test_the_first_number_of_a_path_is_the_layer(path: str | tuple[str, ...], number: int) -> None:
    assert layer_number(path) == number


def test_a_modules_own_index_comes_before_its_path() -> None:
    module = nn.Module()
    assert layer_index(module, "model.layers.3.attn") == 3
    module.layer_idx = 5  # type: ignore[assignment]
    assert layer_index(module, "model.layers.3.attn") == 5


def test_members_of_a_list_end_in_a_number() -> None:
    assert is_list_member("model.layers.3")
    assert not is_list_member("model.layers.3.attn")


def test_lists_of_layers_are_in_the_order_of_their_numbers() -> None:
    layers, experts = nn.ModuleList([nn.Identity() for _ in range(12)]), nn.ModuleList([nn.ReLU()])
    model = nn.ModuleDict({"h": layers, "experts": experts})
    assert layer_lists(model) == [list(layers)]


def test_attention_modules_own_a_query_projection() -> None:
    model = nn.ModuleDict({"attn": nn.ModuleDict({"q_proj": nn.Linear(2, 2)}), "mlp": nn.Module()})
    model["fused"] = nn.ModuleDict({"c_attn": nn.Linear(2, 2)})
    model["einops"] = nn.ModuleDict({"to_qkv": nn.Linear(2, 2)})
    assert list(attention_modules(model)) == ["attn", "fused", "einops"]
