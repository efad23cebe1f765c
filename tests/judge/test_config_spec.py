"""What configs and layers state about spans, scales and soft-caps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attncheck.judge.config_spec import (
    FULL,
    AttentionSpan,
    factor_check,
    scale_specs,
    softcap_spec,
    span_spec,
)


@pytest.mark.parametrize(
    ("fields", "index", "spans"),
    [
        ({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}, 1, (FULL,)),
        (
            {"attention_chunk_size": 4, "layer_types": ["chunked_attention"]},
            0,
            (AttentionSpan("chunked", 4),),
        ),
        ({"sliding_window": 8, "use_sliding_window": False}, 0, (FULL,)),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            1,
            (AttentionSpan("sliding", 8),),
        ),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, 0, (FULL,)),
        ({"sliding_window": 8, "sliding_window_pattern": 2}, 1, (FULL,)),
        ({"sliding_window": 8}, 0, (AttentionSpan("sliding", 8), FULL)),
        ({"layer_types": ["indexed_attention"]}, 0, ()),
        ({}, 0, (FULL,)),
    ],
)
def test_spans_are_read_from_the_fields_that_state_them(
    fields: dict[str, Any], index: int, spans: tuple[AttentionSpan, ...]
) -> None:
    config = type("Config", (), fields)()
    assert span_spec(config, torch.nn.Identity(), index).spans == spans


def test_chunks_end_at_their_boundary() -> None:
    allowed = AttentionSpan("chunked", 4).allowed_TS(2, 6)
    assert allowed.int().tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("fields", "layer", "expected"),
    [
        ({"query_pre_attn_scalar": 64}, {"scaling": 0.5}, [(0.125, "query_pre_attn_scalar")]),
        ({"attention_multiplier": 0.25}, {}, [(0.25, "attention_multiplier")]),
        ({"scale_attn_by_inverse_layer_idx": True}, {}, None),
        ({}, {"norm_factor": 8.0}, [(0.125, "the layer's `norm_factor`"), None]),
        ({}, {}, [None]),
    ],
)
def test_a_scale_of_the_config_comes_before_that_of_the_layer(
    fields: dict[str, Any], layer: dict[str, Any], expected: list[Any] | None
) -> None:
    module = torch.nn.Identity()
    for name, value in layer.items():
        setattr(module, name, value)
    found = [
        (each.value, each.source) for each in scale_specs(SimpleNamespace(**fields), module, 16, 3)
    ]
    usual = (0.25, "1/sqrt(head width)")
    if expected is None:
        assert found == [(0.0625, "scale_attn_by_inverse_layer_idx")]
    else:
        assert found == [each or usual for each in expected]


def test_a_soft_cap_of_the_attention_is_found_and_that_of_the_logits_is_not() -> None:
    assert softcap_spec(SimpleNamespace(final_logit_softcapping=30.0)) is None
    assert softcap_spec(SimpleNamespace(attn_logit_softcapping=50.0)) == 50.0
    assert softcap_spec(None) is None


def test_multipliers_are_known_factors_and_scales_are_not() -> None:
    module, model = torch.nn.Identity(), torch.nn.Identity()
    module.scaling, model.attention_scaling = 0.3, 1.2  # type: ignore[assignment]
    is_known = factor_check(SimpleNamespace(key_multiplier=0.7), model, module)
    assert is_known(0.7, False)
    assert not is_known(0.3, True)
    assert is_known(1.2, True)
    assert not is_known(1.2, False)


class OwnConfig(transformers.PretrainedConfig):
    """A config that no library knows."""

    model_type = "of_its_own"


@pytest.mark.parametrize(("name", "known"), [("local_window", False), ("num_local_experts", True)])
def test_a_limit_of_its_own_promises_nothing(name: str, known: bool) -> None:
    config = OwnConfig()
    setattr(config, name, 6)
    found = span_spec(config, nn.Module(), 0)
    assert found.spans == ((FULL,) if known else ())
    assert (f"its config has `{name}`" in found.reason) is not known
