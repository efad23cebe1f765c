"""cache-kinds: every cache and every operation on it, against one forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from ports.catalogue import PORTS
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.errors import CallFailed
from attncheck.core.measurement import AtMost, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.cache_kinds import LONG, new_cache
from attncheck.model.subject import Subject
from attncheck_probes.cache_kinds.contents import _other_states
from attncheck_probes.cache_kinds.operations import emptied, rolled_back

OPERATIONS = (
    "tokens rolled back",
    "rows turned round",
    "one row kept",
    "rows repeated",
    "a prefix continued in two ways",
)
UNSTORED = "read with `use_cache=False`"
BLOCK = 64


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass_with_both_controls(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "cache-kinds")
    assert found.verdict is Verdict.PASS
    assert len(found.controls) == 2
    assert all(control.detected for control in found.controls)
    held = {each.name for each in found.cases if verdict_of(each) is Verdict.PASS}
    assert held >= {*OPERATIONS, "dynamic cache", "static cache"}


@pytest.mark.parametrize(
    "fault",
    [
        "cache-crop",
        "cache-wrong-slot",
        "cache-stale",
        "cache-layer-mixup",
        "cache-low-precision",
        "cache-reorder",
        "cache-drops-token",
        "key-rotated-twice",
    ],
)
def test_planted_faults_are_caught(subject: Subject, fault: str) -> None:
    assert caught_by(subject, "cache-kinds", fault) is not None


def test_a_padded_batch_is_decoded_on_a_static_cache_too(subject: Subject) -> None:
    padded = case(finding(subject, "cache-kinds"), "static cache, left-padded batch")
    assert verdict_of(padded) is Verdict.PASS
    assert padded.positions > 2 * subject.inputs.length


def test_biases_that_start_again_in_each_chunk_are_caught() -> None:
    assert caught_by(loaded("builtin:alibi"), "cache-kinds", "alibi-local") is not None


def test_a_crop_that_keeps_one_token_too_many_shows_in_the_roll_back_alone(
    subject: Subject,
) -> None:
    broken = caught_by(subject, "cache-kinds", "cache-crop")
    assert broken is not None
    assert broken.name == "tokens rolled back"


def test_the_local_window_of_gpt_neo_sits_at_the_end_of_a_static_buffer() -> None:
    found = finding(loaded("config:gpt_neo"), "cache-kinds")
    assert found.verdict is Verdict.FAIL
    assert found.summary.startswith("static cache: logits differ by ")
    assert verdict_of(case(found, "dynamic cache")) is Verdict.PASS


def test_a_quantised_cache_is_judged_by_its_own_precision(subject: Subject) -> None:
    rounded = case(finding(subject, "cache-kinds"), "quantised cache")
    if rounded.expect == "skip":
        pytest.skip(rounded.note)
    assert isinstance(rounded, AtMost)
    assert subject.budget.value < rounded.value <= rounded.limit


def test_recurrent_states_cannot_be_rolled_back_and_say_so() -> None:
    found = finding(loaded("config:mamba"), "cache-kinds")
    assert found.verdict is Verdict.PASS
    assert case(found, "tokens rolled back").note == "DynamicCache of this model cannot be cropped"


def test_offloading_needs_an_accelerator(subject: Subject) -> None:
    if subject.device.type != "cpu":
        pytest.skip("there is one")
    assert case(finding(subject, "cache-kinds"), "offloaded cache").note.startswith(
        "offloading moves layers between"
    )


def test_a_long_static_cache_has_slots_that_a_short_one_has_not(subject: Subject) -> None:
    sizes = [
        new_cache(kind, subject.model, rows=1, length=24, dtype=torch.float64)
        for kind in ("static", "long static")
    ]
    short, long = (each.layers[0].max_cache_len for each in sizes)
    assert short < BLOCK < 2 * BLOCK < long - 24 == LONG


def test_empty_slots_behind_the_first_block_show_in_a_long_buffer_alone(subject: Subject) -> None:
    def unwritten_visible(
        module: Any, args: Any, call: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        mask = call.get("attention_mask")
        if mask is None or mask.shape[-1] <= BLOCK:
            return args, call
        seen = mask.clone()
        seen[..., BLOCK:] = True if mask.dtype == torch.bool else 0
        return args, {**call, "attention_mask": seen}

    assert verdict_of(case(finding(subject, "cache-kinds"), "long static cache")) is Verdict.PASS
    injected = loaded("builtin:gqa")
    for layer in injected.model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.register_forward_pre_hook(unwritten_visible, with_kwargs=True)  # type: ignore[union-attr, operator]
    found = finding(injected, "cache-kinds")
    assert found.verdict is verdict_of(case(found, "long static cache")) is Verdict.FAIL
    assert verdict_of(case(found, "static cache")) is Verdict.PASS


def test_a_filled_cache_that_is_not_to_be_kept_is_read_all_the_same(subject: Subject) -> None:
    def forgotten(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        lost = {subject.forward_adapter.cache_name: None} if call.get("use_cache") is False else {}
        return args, {**call, **lost}

    healthy = case(finding(subject, "cache-kinds"), UNSTORED)
    assert verdict_of(healthy) is Verdict.PASS
    assert healthy.note == "12 tokens on the cache, 12 fed"
    injected = loaded("builtin:gqa")
    injected.model.model.register_forward_pre_hook(forgotten, with_kwargs=True)  # type: ignore[union-attr, operator]
    found = finding(injected, "cache-kinds")
    assert found.verdict is verdict_of(case(found, UNSTORED)) is Verdict.FAIL
    assert {each.name for each in found.cases if verdict_of(each) is Verdict.FAIL} == {UNSTORED}


@pytest.mark.parametrize("target", ["config:mamba", "config:t5"])
def test_states_and_decoders_behind_an_encoder_read_it_too(target: str) -> None:
    assert verdict_of(case(finding(loaded(target), "cache-kinds"), UNSTORED)) is Verdict.PASS


def test_a_static_buffer_that_the_class_does_not_declare_is_a_skip_in_every_case() -> None:
    """What it raises inside is then the refusal, also where tokens are rolled back."""
    subject = loaded("builtin:gqa")
    attention, static = subject.model.model.layers[0].self_attn, transformers.StaticCache
    usual = attention.forward

    def forward(*args: Any, **named: Any) -> Any:
        if any(isinstance(each, static) for each in (*args, *named.values())):
            return torch.zeros(2) + torch.zeros(3)
        return usual(*args, **named)

    attention.forward = forward
    type(subject.model)._can_compile_fullgraph, before = False, subject.model._can_compile_fullgraph
    try:
        found = finding(subject, "cache-kinds")
    finally:
        type(subject.model)._can_compile_fullgraph = before
    verdicts = {each.name: verdict_of(each) for each in found.cases if "static" in each.name}
    assert found.verdict is Verdict.PASS
    assert len(verdicts) >= 6
    assert set(verdicts.values()) == {Verdict.SKIP}


@pytest.mark.parametrize(
    ("port", "name", "words", "place"),
    [
        (
            "CroppedCount",
            "tokens rolled back",
            "3 tokens cropped, twice, on CountingCrop; after `CountingCrop.crop`, keys of layer 0 "
            "have 15 slots instead of 12",
            "CountingCrop.crop",
        ),
        (
            "Reordered",
            "rows turned round",
            "`reorder_cache`; after `KeysReordered.reorder_cache`, values of layer 0 in row 0 are "
            "those of row 1, in row 1 are those of row 0",
            "KeysReordered.reorder_cache",
        ),
    ],
)
def test_what_an_operation_leaves_in_the_cache_is_said(
    port: str, name: str, words: str, place: str
) -> None:
    build = next(each.build for each in PORTS if each.name == port)
    subject = Subject.of(build(True), port, dtype="float64")
    found = diagnose(subject, finding(subject, "cache-kinds"))
    assert case(found, name).note == words
    assert found.diagnosis is not None
    assert found.location is not None
    assert found.diagnosis.how == "measured"
    assert found.diagnosis.sentence == f"{name.capitalize()}: {words}."
    assert found.location.module == place


def test_states_that_a_rollback_leaves_are_named_with_their_layers() -> None:
    def cache(*values: float) -> SimpleNamespace:
        states = [torch.full((1, 2, 3), value) for value in values]
        return SimpleNamespace(layers=[{"conv_states": {0: each}} for each in states])

    assert _other_states(cache(1.0, 2.0, 3.0), cache(1.0, 2.0, 3.0), 1e-9) == ""
    assert _other_states(cache(4.0, 2.0, 5.0), cache(1.0, 2.0, 3.0), 1e-9) == "0, 2"


@pytest.mark.parametrize("wrong", [False, True])
def test_candidates_that_are_fed_one_by_one_before_a_rollback(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """A sliding layer that records its past hands out all of it for one token, as 5.14 did."""
    usual = transformers.cache_utils.DynamicSlidingWindowLayer.update

    def update(self: Any, keys: Any, values: Any, *rest: Any, **named: Any) -> Any:
        found = usual(self, keys, values, *rest, **named)
        whole = wrong and self.record_past and keys.shape[-2] == 1
        return (self.keys, self.values) if whole else found

    layer = transformers.cache_utils.DynamicSlidingWindowLayer
    monkeypatch.setattr(layer, "update", update)
    subject = loaded("builtin:window")
    found = rolled_back(subject, "tokens rolled back") if not wrong else None
    assert found is None or verdict_of(found) is Verdict.PASS
    if wrong:
        with pytest.raises(CallFailed):
            rolled_back(subject, "tokens rolled back")


def test_a_reset_that_keeps_what_was_read_of_the_encoder_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, subject = "reset and filled again", loaded("config:seq2seq/bart")
    assert verdict_of(emptied(subject, name)) is Verdict.PASS
    cache = transformers.EncoderDecoderCache
    monkeypatch.setattr(cache, "reset", lambda self: self.self_attention_cache.reset())
    found = emptied(subject, name)
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == (
        "12 other tokens before the reset; after `EncoderDecoderCache.reset`, cross-attention keys "
        "of layer 0 differ in slots 0..10"
    )
    assert found.cause.module == "EncoderDecoderCache.reset"
