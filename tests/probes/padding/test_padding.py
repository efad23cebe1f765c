"""padding: real leaks and planted ones are caught; healthy models and designs that cannot be padded
are not accused.
"""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import SMALL
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_hold_but_for_traps_of_the_library(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "padding")
    assert found.verdict in (Verdict.PASS, Verdict.WARN)
    assert len(found.controls) == 2
    assert all(control.detected for control in found.controls)
    traps = {each.name for each in found.cases if verdict_of(each) is Verdict.WARN}
    assert traps <= {"eager in plain float64", "left, implicit positions"}


@pytest.mark.parametrize("fault", ["padding-visible", "nan-masked-row", "attention-mask-ignored"])
def test_planted_faults_are_caught(subject: Subject, fault: str) -> None:
    assert caught_by(subject, "padding", fault) is not None


def test_positions_that_count_the_padding_are_caught_where_they_show() -> None:
    broken = caught_by(loaded("builtin:mha"), "padding", "position-ignores-padding")
    assert broken is not None
    assert broken.name == "left, explicit positions"


def test_the_convolution_of_recurrent_gemma_reads_the_padding() -> None:
    found = finding(loaded("config:recurrent_gemma"), "padding")
    assert found.verdict is Verdict.FAIL
    assert found.summary.startswith("left, ")
    assert verdict_of(case(found, "left, tokens under the padding changed")) is Verdict.FAIL
    assert verdict_of(case(found, "right, tokens under the padding changed")) is Verdict.PASS


def test_decoders_that_take_no_positions_are_not_accused_of_left_padding() -> None:
    found = finding(loaded("config:bart"), "padding")
    assert found.verdict is not Verdict.FAIL
    shifted = case(found, "left, explicit positions")
    assert shifted.expect == "figure"
    assert "padding on the left moves its positions" in shifted.note
    assert verdict_of(case(found, "left, tokens under the padding changed")) is Verdict.PASS


def test_a_mask_that_means_nothing_to_a_model_without_attention_is_skipped() -> None:
    found = finding(loaded("config:rwkv"), "padding")
    assert found.verdict is Verdict.SKIP
    assert found.skip_reason == (
        "the 2D mask is accepted but changes nothing, and attention is computed inside the model, "
        "out of reach of the attention interface"
    )


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [({}, Verdict.WARN), ({"attn": "eager", "dtype": "float64"}, Verdict.FAIL)],
)
def test_nan_of_eager_float64_is_a_fail_only_where_it_was_asked_for(
    settings: dict[str, str], verdict: Verdict
) -> None:
    found = case(finding(loaded("builtin:gqa", **settings), "padding"), "eager in plain float64")
    assert verdict_of(found) is verdict
    assert found.nonfinite == found.value != 0
    assert "this combination only" in found.note


def test_float32_knows_no_such_trap() -> None:
    found = case(
        finding(loaded("builtin:gqa", dtype="float32"), "padding"), "eager in plain float64"
    )
    assert (found.expect, found.note) == ("skip", "concerns float64 only")


def test_learned_positions_without_position_ids_are_a_trap_not_a_fault() -> None:
    found = case(finding(loaded("builtin:mha"), "padding"), "left, implicit positions")
    assert verdict_of(found) is Verdict.WARN
    assert found.note == "without `position_ids` the padding is counted"


def test_implementations_that_differ_without_padding_too_are_not_blamed_on_padding(
    subject: Subject,
) -> None:
    assert caught_by(subject, "implementations", "softmax-scale") is not None
    assert caught_by(subject, "padding", "softmax-scale") is None


def test_layers_that_all_have_short_windows_still_see_history() -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SMALL, sliding_window=4)
    model = transformers.MistralForCausalLM(config)
    amplify(model, 0)
    found = finding(Subject.of(model.double(), "windows", dtype="float64"), "padding")
    assert found.verdict in (Verdict.PASS, Verdict.WARN), (
        "two layers of four tokens do not carry the first token to the last"
    )
    assert len(found.controls) == 2
