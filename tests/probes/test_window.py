"""window: the exact reach of every layer, off by one on either side, ignored and swapped."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import transformers
from conftest import SMALL
from faulty_models.plants import Keys, oldest_lost, reading, watched, whole_past
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "window")
    assert found.verdict is Verdict.PASS
    assert len(found.controls) == 2
    assert all(control.detected for control in found.controls)


def test_the_reach_of_a_model_that_attends_by_itself_is_seen_on_a_cache_too() -> None:
    found = finding(loaded("config:gpt_neo"), "window")
    assert found.verdict is Verdict.PASS
    assert case(found, "a window of 8, on a cache").note == "seen at the kernel"
    broken = caught_by(loaded("config:gpt_neo"), "window", "mask-off-by-one")
    assert broken is not None
    assert "some of them ahead of it" in broken.note


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("fault", ["window-off-by-one", "window-ignored", "window-layers-swapped"])
def test_planted_windows_are_caught_and_named(fault: str, attn: str) -> None:
    broken = caught_by(loaded("config:gemma3_text", attn=attn), "window", fault)
    assert broken is not None
    assert broken.name == "a window of 8, one forward"
    assert broken.cause.fault == fault


def _neo() -> Any:
    config = transformers.GPTNeoConfig(
        vocab_size=64,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=5,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.GPTNeoForCausalLM(config)
    amplify(model, 0)
    return model


@pytest.mark.parametrize("promised", [5, 6])
def test_where_the_kernel_is_out_of_reach_the_gradient_tells(promised: int) -> None:
    subject = Subject.of(_neo(), "neo", dtype="float64")
    subject.model.config.window_size = promised
    found = finding(subject, "window")
    assert found.verdict is (Verdict.PASS if promised == 5 else Verdict.FAIL)
    if promised == 6:
        broken = case(found, "a window of 6, one forward")
        assert broken.cause.fault == "window-off-by-one"
        assert "the query at position 23 reads 5 keys; expected: a window of 6" in broken.note


def test_layers_that_choose_keys_by_content_are_skipped() -> None:
    found = finding(loaded("config:deepseek_v32"), "window")
    assert found.verdict is Verdict.SKIP
    assert (
        found.skip_reason == "a layer of type `indexed_attention` promises no reach of a fixed form"
    )


def test_a_window_in_the_config_that_no_layer_keeps_is_found() -> None:
    found = finding(loaded("config:moshi"), "window")
    assert found.verdict is Verdict.FAIL
    assert (
        "no layer has a window of 8, which the config states without naming layers" in found.summary
    )


@pytest.mark.parametrize(("alternate", "verdict"), [(False, Verdict.SKIP), (True, Verdict.PASS)])
def test_a_window_that_the_input_does_not_reach_is_not_called_right(
    alternate: bool, verdict: Verdict
) -> None:
    config = transformers.Gemma2Config(
        **{**SMALL, "head_dim": 8, "sliding_window": 4096},
        layer_types=["sliding_attention", "full_attention" if alternate else "sliding_attention"],
    )
    torch.manual_seed(0)
    subject = Subject.of(transformers.Gemma2ForCausalLM(config), "gemma2", dtype="float64")
    found = finding(subject, "window")
    assert found.verdict is verdict
    assert found.summary.endswith("input (24 tokens) is shorter than the sliding window (4096)")


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (2, 3)])
@pytest.mark.parametrize("change", [oldest_lost, whole_past])
def test_one_head_that_reads_otherwise_fails_with_layer_and_head(
    layer: int, head: int, change: Keys
) -> None:
    subject = loaded("builtin:window")
    with contextlib.ExitStack() as stack:
        reading(layer, head, change)(subject, watched(subject), stack)
        found = {name: finding(subject, name) for name in ("window", "reference")}
    assert found["window"].verdict is Verdict.FAIL
    assert f"model.layers.{layer}.self_attn, head {head}: the query at" in found["window"].summary
    assert found["reference"].verdict is Verdict.FAIL
    assert (
        f"model.layers.{layer}.self_attn: its head {head} reads other keys than its config states"
        in found["reference"].summary
    )
