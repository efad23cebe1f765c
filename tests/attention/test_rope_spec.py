"""Rotary frequencies computed from the numbers in a config, against those of the library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attncheck.attention.rope_spec import rope_specs

WIDTH = 16
LENGTH = 24


def _config(**rope: Any) -> Any:
    return transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=WIDTH,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )


SCHEMES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.5,
    },
    {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 128,
        "factor": 4.0,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
]


@pytest.mark.parametrize("length", [LENGTH, 200])
@pytest.mark.parametrize("rope", SCHEMES, ids=lambda rope: rope["rope_type"])
def test_frequencies_are_those_of_the_library(rope: dict[str, Any], length: int) -> None:
    config = _config(**rope)
    wanted_P, gain = ROPE_INIT_FUNCTIONS[rope["rope_type"]](
        config, torch.device("cpu"), seq_len=length
    )
    specs = rope_specs(config, 0, WIDTH, length)
    assert isinstance(specs, list)
    (spec,) = specs
    torch.testing.assert_close(spec.inv_freq_P, wanted_P.double(), rtol=4 * spec.rounding, atol=0.0)
    assert spec.gain == pytest.approx(gain, rel=1e-12)
    assert 0 < spec.rounding < 1e-5


def test_the_plain_scheme_is_powers_of_the_base_over_the_rotary_width() -> None:
    config = SimpleNamespace(rope_theta=100.0, partial_rotary_factor=0.5)
    specs = rope_specs(config, 0, WIDTH, LENGTH)
    assert isinstance(specs, list)
    assert specs[0].inv_freq_P.tolist() == pytest.approx(
        [100 ** (-p / 4) for p in range(4)], rel=1e-14
    )
    assert specs[0].origin == "rope_theta 100, 8 channels"


def test_fields_of_older_releases_are_read() -> None:
    config = SimpleNamespace(
        rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0}, max_position_embeddings=64
    )
    (spec,) = rope_specs(config, 0, 4, LENGTH)
    assert spec.inv_freq_P.tolist() == pytest.approx([0.5, 0.005])  # type: ignore[union-attr]
    local = SimpleNamespace(
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        layer_types=["sliding_attention", "full_attention"],
    )
    second = [rope_specs(local, index, 4, LENGTH)[0].inv_freq_P[1] for index in (0, 1)]  # type: ignore[union-attr]
    assert second == pytest.approx([1e-2, 1e-3])


def test_layers_have_the_base_of_their_type_or_no_rotation() -> None:
    config = SimpleNamespace(
        layer_types=["a", "b", "c"],
        rope_parameters={"a": {"rope_theta": 1e4, "rope_type": "default"}, "b": None},
    )
    assert len(rope_specs(config, 0, 4, LENGTH)[0].inv_freq_P) == 2  # type: ignore[union-attr]
    assert len(rope_specs(config, 1, 4, LENGTH)[0].inv_freq_P) == 0  # type: ignore[union-attr]
    assert (
        rope_specs(config, 2, 4, LENGTH) == "`rope_parameters` has no entry for layers of type `c`"
    )
    skipping = SimpleNamespace(rope_theta=1e4, no_rope_layers=[1, 0])
    counts = [len(rope_specs(skipping, index, 4, LENGTH)[0].inv_freq_P) for index in (0, 1)]  # type: ignore[union-attr]
    assert counts == [2, 0]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (SimpleNamespace(), "the config states no base of the rotary frequencies"),
        (
            SimpleNamespace(rope_theta=1e4, rope_scaling={"rope_type": "spiral"}),
            "the config's rotary scheme `spiral` is not known here",
        ),
        (
            SimpleNamespace(rope_theta=1e4, rope_scaling={"rope_type": "linear"}),
            "the config's rotary scheme `linear` is not complete: 'factor'",
        ),
        (
            SimpleNamespace(
                rope_theta=1e4,
                rope_scaling={"rope_type": "dynamic", "factor": 2.0},
                max_position_embeddings=8,
            ),
            "its frequencies depend on the longest sequence so far",
        ),
    ],
    ids=["no base", "unknown", "incomplete", "dynamic"],
)
def test_unknown_schemes_are_reported(config: Any, reason: str) -> None:
    assert rope_specs(config, 0, WIDTH, LENGTH) == reason
