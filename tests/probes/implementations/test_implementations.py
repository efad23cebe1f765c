"""implementations: one that differs is caught, one that was never switched is not counted."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_llama
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.model.training import without_randomness


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_agree_but_for_the_boolean_mask_of_eager(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "implementations")
    assert found.verdict in (Verdict.PASS, Verdict.WARN)
    assert found.controls
    assert all(control.detected for control in found.controls)
    assert {each.name for each in found.cases if verdict_of(each) is Verdict.WARN} <= {
        "boolean 4D mask, eager"
    }


def test_eager_and_sdpa_are_compared_in_five_ways(subject: Subject) -> None:
    found = finding(subject, "implementations")
    compared = [each for each in found.cases if each.name.startswith("eager vs sdpa, ")]
    assert len(compared) == 5
    assert all(verdict_of(each) is Verdict.PASS and each.positions for each in compared)


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("softmax-scale", "eager vs sdpa, plain row"),
        ("dropout-active", "attention weights asked for"),
    ],
)
def test_planted_faults_are_caught(subject: Subject, fault: str, where: str) -> None:
    broken = caught_by(subject, "implementations", fault)
    assert broken is not None
    assert broken.name == where


@pytest.mark.parametrize("attn", [None, "eager"])
def test_a_boolean_mask_under_eager_masks_nothing(attn: str | None) -> None:
    found = finding(loaded("builtin:gqa", attn=attn), "implementations")
    assert verdict_of(case(found, "boolean 4D mask, eager")) is Verdict.WARN
    assert verdict_of(case(found, "boolean 4D mask, sdpa")) is Verdict.PASS
    assert (
        "forward(attention_mask=<4D booleans>) under eager"
        in case(found, "boolean 4D mask, eager").note
    )


def test_a_switch_that_never_reached_the_layers_compares_nothing(subject: Subject) -> None:
    for layer in subject.model.model.layers:
        layer.self_attn.config = copy.deepcopy(layer.self_attn.config)
    found = finding(subject, "implementations")
    assert case(found, "eager vs sdpa, plain row").expect == "skip"
    assert (
        case(found, "eager vs sdpa, plain row").note
        == "the same kernel runs when `eager` is asked for"
    )


def test_a_model_that_keeps_its_own_is_skipped() -> None:
    found = finding(loaded("builtin:alibi"), "implementations")
    assert (
        case(found, "sdpa vs eager, plain row").note
        == "BloomForCausalLM keeps `eager` when asked for `sdpa` attention"
    )


def test_training_mode_leaves_no_trace() -> None:
    model = loaded("builtin:mha").model
    dropout = next(module for module in model.modules() if isinstance(module, torch.nn.Dropout))
    dropout.p = 0.25
    with without_randomness(model, training=True):
        assert model.training
        assert dropout.p == 0.0
    assert not any(module.training for module in model.modules())
    assert dropout.p == 0.25


def test_dropout_that_ignores_the_mode_is_not_hidden_by_the_training_case() -> None:
    subject = loaded("builtin:mha")
    for module in subject.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    assert (
        verdict_of(case(finding(subject, "implementations"), "training mode without dropout"))
        is Verdict.PASS
    )


def test_a_softmax_in_bfloat16_under_one_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = F.softmax
    subject = Subject.of(tiny_llama(), "llama", dtype="float64")
    monkeypatch.setattr(
        F, "softmax", lambda scores, **named: usual(scores, **{**named, "dtype": torch.bfloat16})
    )
    assert (
        verdict_of(case(finding(subject, "implementations"), "eager vs sdpa, plain row"))
        is Verdict.FAIL
    )


def test_flex_attention_is_compared_on_the_cpu_without_a_compiler() -> None:
    found = finding(loaded("builtin:gqa"), "implementations")
    for what in ("plain row", "left-padded batch"):
        flex = case(found, f"flex_attention vs sdpa, {what}")
        assert verdict_of(flex) is Verdict.PASS
        assert flex.positions > 0


def test_a_model_that_loses_its_mask_under_flex_attention_fails() -> None:
    found = finding(loaded("config:doge"), "implementations")
    assert verdict_of(case(found, "flex_attention vs sdpa, plain row")) is Verdict.FAIL
