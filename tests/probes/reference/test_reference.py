"""reference: scales, heads, caps and sinks that are not what the config promises, in every
implementation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from probing import HEALTHY, case, caught_by, finding, loaded
from torch import Tensor

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass_with_two_controls(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "reference")
    assert found.verdict is Verdict.PASS
    assert [control.detected for control in found.controls] == [True, True]


def test_a_model_without_attention_is_skipped_with_the_reason() -> None:
    found = finding(loaded("config:rwkv"), "reference")
    assert found.verdict is Verdict.SKIP
    assert (
        found.skip_reason
        == "RwkvForCausalLM runs no attention that can be watched: no scores pass a softmax and meet values"
    )


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("softmax-scale", "the scores are scaled by 0.125 instead of 0.25"),
        ("kv-groups-tiled", "query heads read KV heads 0 1 0 1"),
        ("causal-mask-missing", "it reads other keys than its config states"),
    ],
)
def test_planted_faults_are_caught_and_named_in_each_implementation(
    attn: str, fault: str, words: str
) -> None:
    broken = caught_by(loaded("builtin:gqa", attn=attn), "reference", fault)
    assert broken is not None
    assert words in broken.note
    assert broken.cause.module == "model.layers.0.self_attn"
    assert broken.cause.fault in (fault, "")


@pytest.mark.parametrize(
    ("target", "fault", "words"),
    [
        ("config:gemma2", "softcap-missing", "the soft-cap of 50 is configured but absent"),
        ("config:gpt_oss", "sink-missing", "the learned sinks take no part in the softmax"),
    ],
)
def test_caps_and_sinks_that_are_absent_are_named(target: str, fault: str, words: str) -> None:
    broken = caught_by(loaded(target), "reference", fault)
    assert broken is not None
    assert words in broken.note
    assert broken.cause.fault == fault


def test_a_layer_is_caught_in_low_precision_too() -> None:
    broken = caught_by(loaded("builtin:gqa", dtype="float32"), "reference", "softmax-scale")
    assert broken is not None
    assert broken.cause.fault == "softmax-scale"


def _llama(
    rotate: Callable[..., tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> Finding:
    """A Llama whose rotary step is exchanged: between the projections and the kernel, where every
    implementation sees it.
    """
    home: Any = sys.modules["transformers.models.llama.modeling_llama"]
    usual = home.apply_rotary_pos_emb
    monkeypatch.setattr(
        home, "apply_rotary_pos_emb", lambda *args, **named: rotate(usual, *args, **named)
    )
    return finding(loaded("builtin:gqa"), "reference")


@pytest.mark.parametrize(("factor", "scale"), [(0.25, 0.0625), (1.05, 0.2625)])
def test_a_scale_applied_to_the_queries_and_again_in_the_kernel_is_found(
    factor: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(
        usual: Any, query: Tensor, key: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        query, key = usual(query, key, *rest, **named)
        return query * factor, key

    found = _llama(twice, monkeypatch)
    assert found.verdict is Verdict.FAIL
    assert f"the scores are scaled by {scale} instead of 0.25" in found.summary
    assert case(found, "attention output of 4 layers, one forward").cause.fault == "softmax-scale"


def test_a_kernel_that_computes_something_else_under_a_mask_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home: Any = sys.modules["transformers.models.llama.modeling_llama"]
    usual = home.eager_attention_forward

    def other(*args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        output_BTHD, weights_BHTS = usual(*args, **named)
        return output_BTHD + output_BTHD.roll(1, 1).tanh(), weights_BHTS

    monkeypatch.setattr(home, "eager_attention_forward", other)
    found = finding(loaded("builtin:gqa", attn="eager"), "reference")
    assert found.verdict is Verdict.FAIL
    assert case(found, "attention output of 4 layers, one forward").note == (
        "model.layers.0.self_attn: no known fault reproduces it (and 3 more layers)"
    )


def test_keys_that_are_turned_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(
        usual: Any, query: Tensor, key: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        query, once = usual(query, key, *rest, **named)
        return query, usual(once, once, *rest, **named)[1]

    found = _llama(twice, monkeypatch)
    assert found.verdict is Verdict.FAIL
    assert (
        case(found, "attention output of 4 layers, one forward").cause.fault == "key-rotated-twice"
    )


def _gpt2(monkeypatch: pytest.MonkeyPatch, ignored: bool) -> Subject:
    config = transformers.GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        scale_attn_by_inverse_layer_idx=True,
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    if ignored:
        for block in model.transformer.h:
            block.attn.scaling = 8**-0.5
    amplify(model, 0)
    return Subject.of(model, "gpt2", dtype="float64")


@pytest.mark.parametrize(("ignored", "verdict"), [(False, Verdict.PASS), (True, Verdict.FAIL)])
def test_scale_flags_of_the_config_are_held_against_the_layer(
    ignored: bool, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(_gpt2(monkeypatch, ignored), "reference")
    assert found.verdict is verdict
    if ignored:
        assert (
            "transformer.h.1.attn: the scores are scaled by 0.353553 instead of 0.176777"
            in found.summary
        )


@pytest.mark.parametrize(
    "name",
    ["gemma3_text", "gpt_neox", "phi3", "olmo2", "deepseek_v3", "falcon_h1", "bart", "codegen"],
)
def test_projections_of_many_forms_are_held_and_healthy(name: str) -> None:
    found = finding(loaded(f"config:{name}"), "reference")
    assert found.verdict is Verdict.PASS
    assert all(control.detected for control in found.controls)


def test_the_fitted_scale_and_heads_are_shown() -> None:
    found = finding(loaded("builtin:gqa"), "reference")
    assert case(found, "scale that fits best").value == pytest.approx(0.25)
    assert case(found, "KV heads that fit the query heads").note == "head by head: 0 0 1 1"
    assert all(verdict_of(each) is Verdict.PASS for each in found.cases)
