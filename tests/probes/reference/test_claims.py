"""reference: scales that only the layer claims, and heads that reach the kernel in another order
than they were projected in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from probing import case, finding, loaded
from torch import Tensor

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify


def diagnosed(subject: Subject) -> Finding:
    return diagnose(subject, finding(subject, "reference"))


def _scaled(change: Callable[[Any], None]) -> Finding:
    return finding(_scaled_subject(change), "reference")


def _scaled_subject(change: Callable[[Any], None], **sizes: Any) -> Subject:
    """A Gemma whose heads are as wide as its config says, with scales of its own."""
    usual = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = transformers.GemmaConfig(
        vocab_size=64, intermediate_size=96, num_hidden_layers=4, **{**usual, **sizes}
    )
    torch.manual_seed(0)
    model: Any = transformers.GemmaForCausalLM(config)
    change(model.model.layers)
    amplify(model, 0)
    return Subject.of(model, "gemma", dtype="float64")


def _set(value: float, *numbers: int) -> Callable[[Any], None]:
    def change(layers: Any) -> None:
        for number in numbers:
            layers[number].self_attn.scaling = value

    return change


FACTORS = ("four times", "a quarter", "a half", "1/width")


@pytest.mark.parametrize(
    ("change", "verdict", "note"),
    [
        (_set(32**-0.5), Verdict.PASS, ""),
        (
            _set(1.0, 0, 1, 2, 3),
            Verdict.FAIL,
            "1 by the layer's `scaling`; the width of its queries gives 1/sqrt(32)",
        ),
        (
            _set(64**-0.5, 0, 1, 2, 3),
            Verdict.FAIL,
            "0.125 by the layer's `scaling`, 1/sqrt(hidden_size); the width of its",
        ),
        (
            _set(16**-0.5, 0, 1, 2, 3),
            Verdict.FAIL,
            "0.25 by the layer's `scaling`, 1/sqrt(hidden_size / num_attention_heads)",
        ),
        (
            _set(0.3, 0, 1, 2, 3),
            Verdict.WARN,
            "0.3 by the layer's `scaling`; the width of its queries gives 1/sqrt(32)",
        ),
        (
            _set(4 * 32**-0.5, 0, 1, 2, 3),
            Verdict.FAIL,
            "0.707107 by the layer's `scaling`; the width of its queries gives 1/sqrt(32)",
        ),
        (_set(0.25 * 32**-0.5, 0, 1, 2, 3), Verdict.FAIL, "0.0441942 by the layer's `scaling`"),
        (_set(0.5 * 32**-0.5, 0, 1, 2, 3), Verdict.FAIL, "0.0883883 by the layer's `scaling`"),
        (_set(1 / 32, 0, 1, 2, 3), Verdict.WARN, "0.03125 by the layer's `scaling`"),
        (_set(0.3, 2), Verdict.FAIL, "model.layers.2.self_attn: 0.3 by the layer's `scaling`"),
    ],
    ids=["usual", "none", "hidden size", "narrower head", "another", *FACTORS, "one layer"],
)
def test_a_scale_that_a_layer_claims_is_held_against_its_width(
    change: Callable[[Any], None], verdict: Verdict, note: str
) -> None:
    found = _scaled(change)
    assert found.verdict is verdict
    judged = case(found, "scale of 4 layers")
    assert verdict_of(judged) is verdict
    assert note in judged.note


def test_a_scale_four_times_off_names_its_fault() -> None:
    found = diagnosed(_scaled_subject(_set(4 * 32**-0.5, 0, 1, 2, 3)))
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "softmax-scale"


def test_heads_that_are_wide_because_the_layer_reads_the_embeddings_too_are_explained() -> None:
    found = finding(loaded("config:zamba"), "reference")
    assert verdict_of(case(found, "scale of 3 layers")) is Verdict.PASS


def _latent() -> Any:
    """A latent attention whose config states a factor on the scale, and pairs of neighbours."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale_all_dim": 1.0,
    }
    config = transformers.DeepseekV3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=2,
        max_position_embeddings=256,
        rope_parameters=rope,
    )
    torch.manual_seed(0)
    model: Any = transformers.DeepseekV3ForCausalLM(config)
    assert model.model.layers[0].self_attn.scaling != pytest.approx(24**-0.5)
    amplify(model, 0)
    return model


def test_no_scale_beside_a_bias_of_distances_is_explained() -> None:
    found = finding(loaded("config:seq2seq/t5"), "reference")
    assert verdict_of(case(found, "scale of 4 layers")) is Verdict.PASS


def test_scales_with_the_factor_of_a_rotary_scheme_are_explained() -> None:
    found = finding(Subject.of(_latent(), "deepseek", dtype="float64"), "reference")
    assert verdict_of(case(found, "scale of 2 layers")) is Verdict.PASS
    assert verdict_of(case(found, "pairs of rotated channels in 2 layers")) is Verdict.PASS
    assert found.verdict is Verdict.PASS


def test_a_scale_without_the_factor_that_the_config_states_is_named() -> None:
    model = _latent()
    for layer in model.model.layers:
        layer.self_attn.scaling = 24**-0.5
    found = diagnosed(Subject.of(model, "deepseek", dtype="float64"))
    judged = case(found, "scale of 2 layers")
    assert judged.note == (
        "model.layers.0.self_attn: 0.204124 lacks the factor 1.29648 of the config's mscale_all_dim"
    )
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "softmax-scale"


def test_channels_paired_otherwise_than_the_config_says_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home: Any = sys.modules["transformers.models.deepseek_v3.modeling_deepseek_v3"]
    monkeypatch.setattr(home, "apply_rotary_pos_emb_interleave", home.apply_rotary_pos_emb)
    found = diagnosed(Subject.of(_latent(), "deepseek", dtype="float64"))
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert found.diagnosis.sentence == (
        "Pairs of rotated channels in 2 layers: model.layers.0.self_attn: queries: each channel is "
        "rotated with the one 4 further on, where the config pairs it with its neighbour "
        "(interleaved: True)."
    )


def _keys(monkeypatch: pytest.MonkeyPatch, change: Callable[[int, Tensor], Tensor]) -> Finding:
    return _states(monkeypatch, lambda layer, query, key: (query, change(layer, key)))


def _states(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Finding:
    """A Llama whose queries and keys are changed behind the projection, by the layer's number."""
    subject = loaded("builtin:gqa")
    home: Any = sys.modules["transformers.models.llama.modeling_llama"]
    usual, calls = home.apply_rotary_pos_emb, iter(range(10**6))

    def rotate(query: Tensor, key: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
        query, key = usual(query, key, *rest, **named)
        return change(next(calls) % 4, query, key)

    monkeypatch.setattr(home, "apply_rotary_pos_emb", rotate)
    return finding(subject, "reference")


def test_heads_in_the_order_of_their_projection_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _keys(monkeypatch, lambda layer, key: key)
    judged = case(found, "order of heads of 4 layers")
    assert (judged.value, judged.positions) == (0.0, 4 * (4 + 2 + 2 + 4))


@pytest.mark.parametrize("layers", [{1}, {0, 1, 2, 3}])
def test_keys_of_another_head_than_the_values_are_found(
    monkeypatch: pytest.MonkeyPatch, layers: set[int]
) -> None:
    found = _keys(monkeypatch, lambda layer, key: key.roll(1, 1) if layer in layers else key)
    assert found.verdict is Verdict.FAIL
    judged = case(found, "order of heads of 4 layers")
    assert verdict_of(judged) is Verdict.FAIL
    assert judged.value == 2 * len(layers)
    assert (
        judged.note
        == f"model.layers.{min(layers)}.self_attn: heads of keys are the blocks 1 0 of `k_proj`"
    )


@pytest.mark.parametrize(("layers", "wrong"), [({0, 1, 2, 3}, 0), ({1}, 4)])
def test_an_order_of_query_heads_that_all_layers_have_is_meant_so(
    monkeypatch: pytest.MonkeyPatch, layers: set[int], wrong: int
) -> None:
    found = _states(
        monkeypatch,
        lambda layer, query, key: (query.flip(1) if layer in layers else query, key),
    )
    assert case(found, "order of heads of 4 layers").value == wrong


@pytest.mark.parametrize("swapped", [False, True])
def test_layers_that_share_keys_must_share_those_of_their_own_type(swapped: bool) -> None:
    subject = loaded("config:gemma3n_text")
    layers: Any = subject.model.get_submodule("model.layers")
    own, other = (layers[number].self_attn.layer_type for number in (2, 3))
    if swapped:
        layers[2].self_attn.layer_type, layers[3].self_attn.layer_type = other, own
    judged = case(finding(subject, "reference"), "keys that 2 layers share with an earlier one")
    assert verdict_of(judged) is (Verdict.FAIL if swapped else Verdict.PASS)
    words = "model.layers.2.self_attn: a layer of type `sliding_attention` reads the keys of model.layers.1.self_attn"
    assert judged.note.startswith(words) is swapped
