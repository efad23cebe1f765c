"""Angles read off what projections gave and kernels got, against angles computed from the numbers
in a config.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attncheck.judge.rope_spec import promised_rotations
from attncheck.judge.rotation_angles import turning_of

WIDTH = 16
LENGTH = 24
FREQUENCIES = [1.0, 0.3, 0.05, 1e-5]


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
def test_promises_are_those_of_the_library_that_computes_them_in_its_own_way(
    rope: dict[str, Any], length: int
) -> None:
    config = _config(**rope)
    wanted_P, gain = ROPE_INIT_FUNCTIONS[rope["rope_type"]](
        config, torch.device("cpu"), seq_len=length
    )
    promises = promised_rotations(config, 0, WIDTH, length)
    assert isinstance(promises, list)
    (promise,) = promises
    torch.testing.assert_close(
        promise.frequencies_P, wanted_P.double(), rtol=4 * promise.rounding, atol=0.0
    )
    assert promise.gain == pytest.approx(gain, rel=1e-12)
    assert 0 < promise.rounding < 1e-5


def test_the_plain_scheme_is_powers_of_the_base_over_the_turned_part() -> None:
    config = SimpleNamespace(rope_theta=100.0, partial_rotary_factor=0.5)
    promises = promised_rotations(config, 0, WIDTH, LENGTH)
    assert isinstance(promises, list)
    assert promises[0].frequencies_P.tolist() == pytest.approx(
        [100 ** (-p / 4) for p in range(4)], rel=1e-14
    )
    assert promises[0].words == "rope_theta 100, 8 channels"


def test_fields_of_older_releases_are_read() -> None:
    config = SimpleNamespace(
        rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0}, max_position_embeddings=64
    )
    (promise,) = promised_rotations(config, 0, 4, LENGTH)
    assert promise.frequencies_P.tolist() == pytest.approx([0.5, 0.005])  # type: ignore[union-attr]
    local = SimpleNamespace(
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        layer_types=["sliding_attention", "full_attention"],
    )
    second = [promised_rotations(local, index, 4, LENGTH)[0].frequencies_P[1] for index in (0, 1)]  # type: ignore[union-attr]
    assert second == pytest.approx([1e-2, 1e-3])


def test_layers_have_the_base_of_their_type_or_no_rotation() -> None:
    config = SimpleNamespace(
        layer_types=["a", "b", "c"],
        rope_parameters={"a": {"rope_theta": 1e4, "rope_type": "default"}, "b": None},
    )
    assert len(promised_rotations(config, 0, 4, LENGTH)[0].frequencies_P) == 2  # type: ignore[union-attr]
    assert len(promised_rotations(config, 1, 4, LENGTH)[0].frequencies_P) == 0  # type: ignore[union-attr]
    assert (
        promised_rotations(config, 2, 4, LENGTH)
        == "`rope_parameters` has no entry for layers of type `c`"
    )
    skipping = SimpleNamespace(rope_theta=1e4, no_rope_layers=[1, 0])
    counts = [
        len(promised_rotations(skipping, index, 4, LENGTH)[0].frequencies_P) for index in (0, 1)
    ]  # type: ignore[union-attr]
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
def test_what_is_not_understood_is_no_promise(config: Any, reason: str) -> None:
    assert promised_rotations(config, 0, WIDTH, LENGTH) == reason


def _turn(given_BHTD: Tensor, first: int, pairing: str, into: str) -> Tensor:
    """Turned channel by channel, as it is defined."""
    handed_BHTD, count = given_BHTD.clone(), len(FREQUENCIES)
    for pair, frequency in enumerate(FREQUENCIES):
        left, right = (pair, pair + count) if pairing == "half" else (2 * pair, 2 * pair + 1)
        to_left, to_right = (pair, pair + count) if into == "half" else (2 * pair, 2 * pair + 1)
        for position in range(given_BHTD.shape[2]):
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            x, y = (given_BHTD[:, :, position, first + each] for each in (left, right))
            handed_BHTD[:, :, position, first + to_left] = x * cos - y * sin
            handed_BHTD[:, :, position, first + to_right] = x * sin + y * cos
    return handed_BHTD


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("first", [0, 8])
@pytest.mark.parametrize(
    ("pairing", "into"), [("half", "half"), ("pairs", "pairs"), ("pairs", "half")]
)
def test_pairs_and_angles_are_found_in_every_layout(
    heads: int, first: int, pairing: str, into: str
) -> None:
    torch.manual_seed(0)
    given_BHTD = torch.randn(1, heads, LENGTH, WIDTH, dtype=torch.float64)
    stages = {"proj": given_BHTD.transpose(1, 2).flatten(2), "other": torch.randn(1, LENGTH, WIDTH)}
    found = turning_of(
        3.0 * _turn(given_BHTD, first, pairing, into), stages, 2 * len(FREQUENCIES), None
    )
    assert found is not None
    assert found.stage == "proj"
    assert found.steps_P.tolist() == pytest.approx(FREQUENCIES, abs=1e-12)
    assert found.gain == pytest.approx(3.0)
    assert found.layout == (first, 8, pairing, into)


def test_channels_that_are_handed_on_are_not_turned_and_others_come_from_nowhere() -> None:
    given_BHTD = torch.randn(1, 2, LENGTH, WIDTH, dtype=torch.float64)
    stages = {"proj": given_BHTD.transpose(1, 2)}
    still = turning_of(0.5 * given_BHTD, stages, WIDTH, None)
    assert still is not None
    assert still.pairs == 0
    assert turning_of(torch.randn_like(given_BHTD), stages, WIDTH, None) is None
