"""reference: positions that turn queries and keys otherwise than the config promises, in every
layer or in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from probing import finding, loaded
from torch import Tensor, nn

from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _model(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    amplify(model, 0)
    return model


def _judged(model: Any) -> Finding:
    subject = Subject.of(model, "model", dtype="float64")
    return finding(subject, "reference")


def _rotation(found: Finding) -> Measurement:
    return next(each for each in found.cases if each.name.startswith("rotation of") and each.judged)


def _llama(**rope: Any) -> Any:
    return _model(transformers.LlamaConfig(**SIZES, **({"rope_parameters": rope} if rope else {})))


def _own_tables(
    layer: nn.Module, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    """Give one layer's attention other sines and cosines than its siblings."""

    def before(module: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**named, "position_embeddings": change(*named["position_embeddings"])}

    layer.self_attn.register_forward_pre_hook(before, with_kwargs=True)  # type: ignore[union-attr, operator]


def _frequencies(model: Any, change: Callable[[Tensor], Tensor]) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = change(rotary.inv_freq)
    rotary.original_inv_freq = rotary.inv_freq.clone()


HEALTHY: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "yarn": lambda: _llama(**YARN),
    "linear": lambda: _llama(rope_type="linear", rope_theta=10000.0, factor=4.0),
    "qwen3": lambda: _model(transformers.Qwen3Config(**SIZES, head_dim=32)),
    "stablelm, in part": lambda: _model(transformers.StableLmConfig(**SIZES)),
    "stablelm, in part, with a gain": lambda: _model(
        transformers.StableLmConfig(**SIZES, rope_parameters=dict(YARN))
    ),
}


@pytest.mark.parametrize("build", HEALTHY.values(), ids=HEALTHY)
def test_healthy_rotation_of_many_schemes_passes(build: Callable[[], Any]) -> None:
    found = _judged(build())
    assert found.verdict is Verdict.PASS
    case = _rotation(found)
    assert case.name == "rotation of 4 layers, one forward"
    assert case.max_abs is not None
    assert 0 < case.max_abs < 1e-6


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gemma3_text", 4),
        ("gpt_neox", 4),
        ("cohere2", 3),
        ("smollm3", 4),
        ("gptj", 4),
        ("deepseek_v3", 4),
        ("gemma4_text", 4),
    ],
)
def test_healthy_rotation_of_many_types_passes(name: str, layers: int) -> None:
    found = finding(loaded(f"config:{name}"), "reference")
    assert found.verdict is Verdict.PASS
    assert _rotation(found).name == f"rotation of {layers} layers, one forward"


def test_layers_that_nothing_turns_are_skipped_with_the_reason() -> None:
    found = finding(loaded("config:cohere2"), "reference")
    (skip,) = [each for each in found.cases if each.name == "rotation of 1 layers not judged"]
    assert skip.note == "model.layers.3.self_attn: no rotary embedding observed on queries or keys"


def _base_of_one_layer() -> Any:
    model = _llama()
    other = type(model.model.rotary_emb)(
        transformers.LlamaConfig(
            **SIZES, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}
        )
    )
    place = torch.arange(512)[None]
    tables = other(torch.zeros(1), place)
    _own_tables(
        model.model.layers[2],
        lambda cos, sin: tuple(each[:, : cos.shape[1]].to(cos) for each in tables),
    )  # type: ignore[arg-type, return-value]
    return model


def _sense_of_one_layer() -> Any:
    model = _llama()
    _own_tables(model.model.layers[1], lambda cos, sin: (cos, -sin))
    return model


def _scaling_ignored() -> Any:
    model = _llama(rope_type="linear", rope_theta=10000.0, factor=4.0)
    _frequencies(model, lambda frequencies: frequencies * 4)
    return model


def _gain_ignored() -> Any:
    model = _llama(**YARN)
    model.model.rotary_emb.attention_scaling = 1.0
    return model


def _gain_twice() -> Any:
    model = _llama(**YARN)
    for layer in model.model.layers:
        gain = model.model.rotary_emb.attention_scaling
        _own_tables(layer, lambda cos, sin, gain=gain: (cos * gain, sin * gain))
    return model


def _yarn_ignored() -> Any:
    model = _llama(**YARN)
    _frequencies(model, lambda frequencies: 10000.0 ** (-torch.arange(0, 16, 2) / 16))
    return model


def _stretched() -> Any:
    model, base = _llama(), 10000.0 * 4 ** (16 / 14)
    _frequencies(model, lambda frequencies: base ** (-torch.arange(0, 16, 2) / 16))
    return model


def _part_ignored() -> Any:
    model = _model(transformers.StableLmConfig(**SIZES))
    _frequencies(model, lambda frequencies: 10000.0 ** (-torch.arange(0, 16, 2) / 16))
    for layer in model.model.layers:
        layer.self_attn.rotary_ndims = 16
    return model


def _rounded() -> Any:
    model = _model(transformers.Qwen3Config(**SIZES, head_dim=32))
    _frequencies(model, lambda frequencies: frequencies.bfloat16().float())
    return model


def _swapped() -> Any:
    model = loaded("config:gemma3_text").model
    rotary, types = model.model.rotary_emb, ("sliding_attention", "full_attention")
    usual = rotary.forward
    rotary.forward = lambda states, places, kind: usual(states, places, types[kind == types[0]])
    return model


def _one_layer_not_turned() -> Any:
    model = _llama()
    _own_tables(
        model.model.layers[2], lambda cos, sin: (torch.ones_like(cos), torch.zeros_like(sin))
    )
    return model


def _gain_without_one() -> Any:
    """YaRN whose config states that its tables have no gain, with the gain of the formula."""
    model = _llama(**{**YARN, "attention_factor": 1.0})
    model.model.rotary_emb.attention_scaling = 1.13863
    return model


def _never_filled() -> Any:
    model = _llama()
    _frequencies(model, torch.zeros_like)
    return model


BROKEN: list[tuple[Callable[[], Any], str, int]] = [
    (_swapped, "queries: rotary base 1e+06 where the config says 10000 (and 3 more layers)", 0),
    (_base_of_one_layer, "queries: rotary base 1e+06 where the config says 10000", 2),
    (_scaling_ignored, "queries: positions multiplied by 1 where the config says 0.25", 0),
    (_yarn_ignored, "queries: rotary base 10000 where the config says rope_theta 10000, 16", 0),
    (_stretched, "queries: rotary base 48760.5 where the config says 10000, as after NTK sca", 0),
    (_part_ignored, "queries: 16 rotated channels where the config says 4", 0),
    (_rounded, "every layer uses the expected frequencies rounded to bfloat16", 0),
    (_sense_of_one_layer, "rotates in the opposite direction", 1),
    (_gain_ignored, "rotated channels are multiplied by 1 instead of 1.13863", 0),
    (_gain_twice, "rotated channels are multiplied by 1.29648 instead of 1.13863", 0),
    (_gain_without_one, "multiplied by 1.13863 instead of 1, those of queries too", 0),
    (_never_filled, "queries: positions do not rotate them; pair 0 should rotate by 1 per", 0),
    (_one_layer_not_turned, "positions do not rotate them", 2),
]


@pytest.mark.parametrize(
    ("build", "words", "layer"), BROKEN, ids=[build.__name__.strip("_") for build, _, _ in BROKEN]
)
def test_rotation_that_is_not_promised_is_found_with_its_layer(
    build: Callable[[], Any], words: str, layer: int
) -> None:
    found = _judged(build())
    assert found.verdict is Verdict.FAIL
    case = _rotation(found)
    assert verdict_of(case) is Verdict.FAIL
    assert words in case.note
    assert case.cause.module == f"model.layers.{layer}.self_attn"


def test_a_model_that_turns_the_other_way_throughout_is_a_warning() -> None:
    model = _llama()
    for layer in model.model.layers:
        _own_tables(layer, lambda cos, sin: (cos, -sin))
    case = _rotation(_judged(model))
    assert verdict_of(case) is Verdict.WARN
    assert "rotates in the opposite direction" in case.note


def test_frequencies_that_a_cast_took_along_are_a_warning_and_said_to_be_rounded() -> None:
    case = _rotation(_judged(_llama().to(torch.bfloat16)))
    assert verdict_of(case) is Verdict.WARN
    assert case.note.endswith("every layer uses the expected frequencies rounded to bfloat16")


def test_a_fault_that_only_the_case_locates_is_located_in_the_finding() -> None:
    subject = Subject.of(_sense_of_one_layer(), "model", dtype="float64")
    told = diagnose(subject, finding(subject, "reference"))
    assert told.diagnosis is not None
    assert told.diagnosis.fault == ""
    assert told.location is not None
    assert (told.location.module, told.location.layer) == ("model.layers.1.self_attn", 1)


def test_a_model_with_slopes_that_keeps_unused_frequencies_is_healthy() -> None:
    config = transformers.FalconConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=True
    )
    found = _judged(_model(config))
    assert found.verdict is not Verdict.FAIL, found.summary
