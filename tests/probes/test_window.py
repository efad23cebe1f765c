"""window: the exact reach of every layer, off by one on either side, ignored and swapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.finding import Verdict
from attncheck.judge.attention_span import ObservedKeys, exemption, wrong_pairs
from attncheck.judge.config_spec import FULL, AttentionSpan, span_spec
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


def test_a_window_that_the_kernel_cuts_short_by_one_is_caught() -> None:
    """The config says 9 after the masks were built for 8: every windowed layer reads one key less
    than promised.
    """
    subject = loaded("config:mistral")
    window = subject.text_config.sliding_window
    seen = ObservedKeys(
        name="layer",
        index=0,
        module=torch.nn.Identity(),
        reads_TS=AttentionSpan("sliding", window - 1).allowed_TS(24, 24),
        positions=tuple(range(24)),
        stop=24,
        masked=True,
    )
    assert wrong_pairs(seen, AttentionSpan("sliding", window)) == 24 - (window - 1)
    assert wrong_pairs(seen, AttentionSpan("sliding", window - 1)) == 0
    assert exemption(seen, [seen]) == ""


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


@pytest.mark.parametrize(
    ("fields", "index", "reach"),
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
def test_promises_are_read_from_the_fields_that_state_them(
    fields: dict[str, Any], index: int, reach: tuple[AttentionSpan, ...]
) -> None:
    config = type("Config", (), fields)()
    assert span_spec(config, torch.nn.Identity(), index).spans == reach


def test_chunks_end_at_their_border() -> None:
    allowed = AttentionSpan("chunked", 4).allowed_TS(2, 6)
    assert allowed.int().tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]


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
        "no layer has a window of 8, which the config states without naming layers"
        in found.summary
    )
