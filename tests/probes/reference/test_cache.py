"""reference on a cache: faults that only a prefill, a chunk or a step has, in the layer that has
them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probing import case, finding, loaded
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.core import registry
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject

STEP = "attention output of 4 layers, a step on the cache"
PADDED = "attention output of 4 layers, left padding, a step on the cache"


def _broken(subject: Subject) -> dict[str, Measurement]:
    return {
        each.name: each
        for each in registry.load("reference").measure(subject)
        if verdict_of(each) is Verdict.FAIL
    }


def _in_steps(change: Callable[[AttentionCall], Any], layer: int) -> Callable[[AttentionCall], Any]:
    """Plant in the one-token calls of one layer."""

    def handler(call: AttentionCall) -> Any:
        if call.query_BHTD.shape[2] == 1 and call.module.layer_idx == layer:
            change(call)
        return call.run()

    return handler


def _halve(call: AttentionCall) -> None:
    call.query_BHTD = call.query_BHTD * 0.5


def _uncap(call: AttentionCall) -> None:
    call.options = {**call.options, "softcap": None}


def _lose_first(call: AttentionCall) -> None:
    allowed = allowed_BHTS(call).clone()
    allowed[..., 0] = False
    with_allowed(call, allowed)


@pytest.mark.parametrize(
    ("target", "change", "fault", "words"),
    [
        (
            "builtin:gqa",
            _halve,
            "softmax-scale",
            "the scores are scaled by 0.125 instead of 0.25",
        ),
        (
            "builtin:alibi",
            _halve,
            "softmax-scale",
            "the scores are scaled by 0.125 instead of 0.25",
        ),
        ("config:gemma2", _uncap, "softcap-missing", "the soft-cap of 50 is configured but absent"),
        ("config:mpt", _lose_first, "", "it reads other keys than its config states"),
    ],
)
def test_faults_of_one_token_steps_are_caught_in_their_layer(
    target: str, change: Callable[[AttentionCall], None], fault: str, words: str
) -> None:
    subject = loaded(target)
    with subject.handle_calls(_in_steps(change, layer=2)):
        broken = _broken(subject)
    assert set(broken) == {STEP, PADDED}
    assert ".2." in broken[STEP].cause.module
    assert broken[STEP].cause.fault == fault
    assert words in broken[STEP].note


def test_sinks_that_steps_leave_out_are_named() -> None:
    subject = loaded("config:gpt_oss", attn="eager")
    home: Any = sys.modules[type(subject.model).__module__]
    usual = home.eager_attention_forward

    def without(module: nn.Module, query: Tensor, *rest: Any, **named: Any) -> Any:
        if query.shape[2] > 1:
            return usual(module, query, *rest, **named)
        kept = module.sinks.data.clone()  # type: ignore[union-attr, operator]
        module.sinks.data.fill_(-1e30)  # type: ignore[union-attr, operator]
        try:
            return usual(module, query, *rest, **named)
        finally:
            module.sinks.data.copy_(kept)  # type: ignore[union-attr, operator]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "eager_attention_forward", without)
        broken = _broken(subject)
    assert set(broken) == {STEP, PADDED}
    assert broken[STEP].cause.fault == "sink-missing"


def test_queries_that_a_step_does_not_turn_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    home: Any = importlib.import_module("transformers.models.llama.modeling_llama")
    usual = home.apply_rotary_pos_emb

    def rotate(query: Tensor, key: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
        turned = usual(query, key, *rest, **named)
        return (query, turned[1]) if query.shape[2] == 1 else turned

    monkeypatch.setattr(home, "apply_rotary_pos_emb", rotate)
    broken = _broken(loaded("builtin:gqa"))
    assert set(broken) == {STEP, PADDED}
    assert "the rotary tables do not rotate queries, unlike in one forward" in broken[STEP].note


@pytest.mark.parametrize(("norm", "what"), [("q_norm", "queries"), ("k_norm", "keys")])
def test_a_norm_that_steps_leave_out_is_found(norm: str, what: str) -> None:
    subject = loaded("config:qwen3")
    attention: Any = subject.model.model.layers[1].self_attn  # type: ignore[union-attr, index]
    attention.usual = getattr(attention, norm)
    delattr(attention, norm)
    vars(attention)[norm] = lambda states: (
        states if states.shape[1] == 1 else attention.usual(states)
    )
    broken = _broken(subject)
    step = broken["what layers read and compare, a step on the cache"]
    assert (step.cause.module, step.value) == ("model.layers.1.self_attn", 1)
    assert f"{what} come from `{norm[0]}_proj`, in one forward from `usual`" in step.note


def test_a_cache_that_drops_keys_of_the_whole_past_is_found() -> None:
    """Its forward reads the whole past, its cache keeps a window."""
    broken = _broken(loaded("config:moshi"))
    step = broken["what layers read and compare, a step on the cache"]
    assert step.value == 4
    assert step.note.endswith(
        "its cache has dropped keys that it reads in one forward: the whole past"
    )


def test_a_mask_that_is_wrong_only_with_a_cache_is_found() -> None:
    subject = loaded("builtin:gqa")
    with faults.fault("mask-top-left").inject(subject):
        broken = _broken(subject)
    assert set(broken) == {"attention output of 4 layers, a chunk on the cache", STEP, PADDED}
    assert all(
        "it reads other keys than its config states" in each.note for each in broken.values()
    )


def test_padding_that_is_read_is_found() -> None:
    subject = loaded("builtin:gqa")
    with faults.fault("padding-visible").inject(subject):
        broken = _broken(subject)
    assert "attention output of 4 layers, left padding, prefill" in broken
    assert broken[PADDED].note.startswith(
        "model.layers.0.self_attn: it reads other keys than its config states"
    )


@pytest.mark.parametrize("name", ["mistral", "llama4_text", "gpt_oss", "deepseek_v3", "qwen3_next"])
def test_windows_chunks_and_latent_keys_hold_on_a_cache(name: str) -> None:
    found = finding(loaded(f"config:{name}"), "reference")
    assert found.verdict is Verdict.PASS
    on_cache = [each for each in found.cases if each.judged and "cache" in each.name]
    assert len(on_cache) == 4
    assert all(each.positions for each in on_cache)


def test_a_buffer_longer_than_what_it_holds_is_judged() -> None:
    healthy = loaded("builtin:window", cache="static")
    assert _broken(healthy) == {}
    neo = _broken(loaded("config:gpt_neo", cache="static"))
    assert (
        "it reads other keys than its config states" in neo[STEP if STEP in neo else min(neo)].note
    )


def test_one_query_is_held_to_the_rounding_of_a_whole_forward() -> None:
    found = finding(loaded("config:dory"), "reference")
    assert found.verdict is Verdict.PASS
    assert case(found, "attention output of 6 layers, a step on the cache").positions == 6


def test_the_cost_is_a_handful_of_forwards() -> None:
    subject = loaded("builtin:gqa")
    list(registry.load("reference").measure(subject))
    before = subject.loaded.forwards
    with torch.no_grad():
        list(registry.load("reference").measure(subject))
    assert subject.loaded.forwards - before == 8, (
        "one plain, one with a 2D mask, three pieces, two of a padded batch, one for rotation"
    )
