"""Rows with pictures and sound in them: healthy models pass, and faults of the library are seen."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
import torch
from media_models import codebooks, multimodal

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.probing import media_answers, media_batches, media_cases


def every(subject: Subject) -> dict[str, Measurement]:
    asked = (
        media_cases.decoded(subject),
        media_cases.static_cache(subject),
        media_cases.implementations(subject, ("eager",)),
        media_cases.future(subject),
        media_cases.history(subject),
        media_batches.beside(subject),
        media_batches.padded(subject),
    )
    return {case.name: case for cases in asked for case in cases}


def broken(subject: Subject) -> dict[str, Verdict]:
    found = {name: verdict_of(case) for name, case in every(subject).items()}
    return {name: each for name, each in found.items() if each is not Verdict.PASS}


@pytest.mark.parametrize(("name", "cases"), [("llava", 25), ("idefics3", 25)])
def test_healthy_models_pass_every_case(name: str, cases: int) -> None:
    subject = multimodal(name)
    assert len(every(subject)) == cases
    assert broken(subject) == {}


def test_a_prefix_that_is_read_both_ways_is_no_leak() -> None:
    found = every(multimodal("paligemma"))
    assert {name for name, case in found.items() if verdict_of(case) is not Verdict.PASS} == {
        "a second picture on the cache",
        "another picture moves nothing in front of it",
        "the second of two pictures moves nothing in front of it",
    }
    assert found["another picture moves nothing in front of it"].note == (
        "everything up to the end of the prompt is a prefix, read both ways, pictures too"
    )
    assert verdict_of(found["token types matter beside a picture"]) is Verdict.PASS


def test_a_picture_that_reads_a_later_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, name = multimodal("gemma3"), "the second of two pictures moves nothing in front of it"
    assert verdict_of(every(subject)[name]) is Verdict.PASS
    module = sys.modules[type(subject.model).__module__]

    def one_block(token_type_ids: torch.Tensor, device: Any = None) -> torch.Tensor:
        return torch.where(token_type_ids == 1, 0, -1).to(device)

    monkeypatch.setattr(module, "get_block_sequence_ids_for_mask", one_block)
    found = {each.name: each for each in media_cases.future(multimodal.__wrapped__("gemma3"))}
    assert verdict_of(found[name]) is Verdict.FAIL
    assert verdict_of(found["another picture moves nothing in front of it"]) is Verdict.PASS


def test_pictures_that_meet_in_the_vision_tower_are_named_with_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = multimodal.__wrapped__("qwen2_vl")
    tower = type(subject.model.model.visual.blocks[0].attn)
    usual = tower.forward

    def together(self: Any, states: torch.Tensor, cu_seqlens: torch.Tensor, **given: Any) -> Any:
        return usual(self, states, cu_seqlens=cu_seqlens[[0, -1]], **given)

    monkeypatch.setattr(tower, "forward", together)
    found = {each.name: each for each in media_batches.beside(subject)}["one picture beside two"]
    module = "model.visual.blocks.0.attn"
    assert (found.cause.fault, found.cause.module) == ("rows-mixed", module)
    assert found.note == f"row 1; in {module} pictures read those of other rows"
    cases = {each.name: each for each in media_cases.future(subject)}
    ahead = cases["the second of two pictures moves nothing in front of it"]
    assert ahead.note == f"in {module} the first picture reads the second"


def test_a_picture_that_is_read_over_the_border_of_a_window_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = multimodal.__wrapped__("gemma3")
    module = sys.modules[type(subject.model).__module__]
    subject.text_config.sliding_window = 3
    for each in subject.model.modules():
        if getattr(each, "sliding_window", None):
            each.sliding_window = 3
    (kept,) = media_cases.windows(subject)
    assert verdict_of(kept) is Verdict.PASS
    monkeypatch.setattr(module, "sliding_window_overlay", lambda size: lambda *at: at[3] >= 0)
    (found,) = media_cases.windows(subject)
    assert verdict_of(found) is Verdict.FAIL
    assert found.cause.fault == "window-ignored"
    assert found.note.endswith("layers.0.self_attn: a window of 3, a picture of 4 tokens")


def test_token_types_that_generate_does_not_pass_on_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = multimodal.__wrapped__("gemma3")
    model = subject.model
    usual = model.prepare_inputs_for_generation

    @functools.wraps(usual)
    def without(*args: Any, **given: Any) -> Any:
        return {**usual(*args, **given), "token_type_ids": None}

    monkeypatch.setattr(model, "prepare_inputs_for_generation", without)
    found = {each.name: each for each in media_answers.answers(subject, 2)}["answer to a picture"]
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == "generate() does not pass `token_type_ids` on to forward"
    home = f"{type(model).__name__}.prepare_inputs_for_generation"
    assert (found.cause.fault, found.cause.module) == ("token-types-ignored", home)


def test_sound_is_asked_like_pictures() -> None:
    subject = multimodal("phi4_multimodal")
    assert [medium.kind for medium in subject.media] == ["picture", "sound"]
    found = {case.name: verdict_of(case) for case in media_cases.decoded(subject)}
    assert found["one token at a time behind a sound"] is Verdict.PASS
    assert found["one token at a time behind two pictures"] is Verdict.PASS


def test_positions_that_a_picture_leaves_behind_are_seen() -> None:
    found = {case.name: case for case in media_cases.history(multimodal("qwen2_vl"))}
    stale = found["the same steps over text before and after a picture"]
    assert verdict_of(stale) is Verdict.FAIL
    assert stale.max_abs is not None
    assert stale.max_abs > 0.1
    assert verdict_of(found["the same text before and after a picture"]) is Verdict.PASS


def test_masked_states_of_a_picture_are_seen() -> None:
    subject = multimodal("mllama")
    found = {case.name: verdict_of(case) for case in media_cases.future(subject)}
    assert found["another picture moves nothing in front of it"] is Verdict.FAIL
    assert found["tokens behind a picture changed"] is Verdict.PASS


def test_every_codebook_is_asked() -> None:
    found = {case.name: verdict_of(case) for case in media_cases.future(codebooks())}
    assert found == {
        f"other codes in codebook {number} move the logits": Verdict.PASS for number in range(3)
    }


def test_a_model_of_text_alone_has_no_case_and_costs_no_forward() -> None:
    from probing import loaded

    subject = loaded("builtin:gqa")
    before = subject.loaded.forwards
    assert every(subject) == {}
    assert subject.loaded.forwards == before
