"""cache-kinds: every cache and every operation on it, against one forward."""

from __future__ import annotations

import pytest
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.finding import Verdict, verdict_of
from attncheck.model.subject import Subject

OPERATIONS = (
    "tokens rolled back",
    "rows turned round",
    "one row kept",
    "rows repeated",
    "a prefix continued in two ways",
)


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
    assert rounded.expect == "at-most"
    assert rounded.value is not None
    assert rounded.limit is not None
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
