"""padding: real leaks and planted ones are caught; healthy models and designs that cannot be padded
are not accused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from conftest import SMALL
from probing import HEALTHY, case, caught_by, finding, loaded
from torch import Tensor

from attncheck.core.choice import only
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.compat import CACHE_NAMES
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


def test_a_mask_that_is_accepted_and_changes_nothing_fails() -> None:
    found = finding(loaded("config:rwkv"), "padding")
    assert found.verdict is Verdict.FAIL
    matters = case(found, "the 2D mask matters")
    assert verdict_of(matters) is Verdict.FAIL
    assert matters.max_abs == 0.0
    assert matters.cause.fault == "attention-mask-ignored"


@pytest.mark.parametrize("chunks", [False, True], ids=["at once", "on a cache"])
def test_a_mask_that_is_dropped_for_a_row_alone_is_caught(chunks: bool) -> None:
    subject = loaded("builtin:gqa")
    usual, mask_name = subject.model.forward, subject.forward_adapter.mask_name

    def forward(input_ids: Tensor, **named: Any) -> Any:
        on_cache = any(named.get(name) is not None for name in CACHE_NAMES)
        if input_ids.shape[0] == 1 and (on_cache or not chunks):
            named[str(mask_name)] = None
        return usual(input_ids, **named)

    subject.model.forward = forward
    found = finding(subject, "padding")
    assert found.verdict is Verdict.FAIL
    name = "left, one row, decoded on a padded cache" if chunks else "the 2D mask matters"
    assert verdict_of(case(found, name)) is Verdict.FAIL


@pytest.mark.parametrize("settings", [{}, {"attn": "eager", "dtype": "float64"}])
def test_nan_of_eager_float64_warns_whoever_asked_for_eager(settings: dict[str, str]) -> None:
    found = case(finding(loaded("builtin:gqa", **settings), "padding"), "eager in plain float64")
    assert verdict_of(found) is Verdict.WARN
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


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_that_breaks_in_plain_float64_is_not_asked_there(dtype: str) -> None:
    asked = case(finding(loaded("config:xglm", dtype=dtype), "padding"), "eager in plain float64")
    assert verdict_of(asked) is Verdict.SKIP
    assert asked.note.startswith("concerns float64 only")


@pytest.mark.parametrize("lost", [False, True])
def test_an_encoder_output_that_is_passed_needs_its_mask(lost: bool) -> None:
    subject = loaded("config:seq2seq/bart")

    def dropped(module: Any, args: Any, named: dict[str, Any]) -> Any:
        passed = named.get("encoder_outputs") is not None
        return args, {**named, **({"attention_mask": None} if lost and passed else {})}

    handle = subject.model.register_forward_pre_hook(dropped, with_kwargs=True)
    name = "the encoder's output in the place of a padded input"
    with only(name):
        broken = case(finding(subject, "padding"), name)
    handle.remove()
    assert verdict_of(broken) is (Verdict.FAIL if lost else Verdict.PASS)
    assert broken.note == ("its mask hides nothing beside `encoder_outputs`" if lost else "")
    assert (broken.cause.fault if broken.cause else "") == ("padding-visible" if lost else "")


class Reads(torch.nn.Module):
    """An encoder's mean beside a decoder that takes no mask of its own; its encoder has no name."""

    def get_encoder(self) -> torch.nn.Module:
        """What the library's models without a named encoder return."""
        return self

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = transformers.PretrainedConfig(
            is_encoder_decoder=True, decoder_start_token_id=1
        )
        self.embed, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
    ) -> Any:
        """Logits, and the encoder's states."""
        states = self.embed(input_ids) if encoder_outputs is None else encoder_outputs[0]
        mask = torch.ones(states.shape[:2]) if attention_mask is None else attention_mask
        weights = (mask / mask.sum(1, keepdim=True))[..., None].to(states.dtype)
        x = self.embed(decoder_input_ids).cumsum(1) + (weights * states).sum(1, keepdim=True)
        return transformers.modeling_outputs.Seq2SeqLMOutput(
            logits=self.head(x), encoder_last_hidden_state=states
        )


def test_padding_of_an_encoder_is_asked_beside_a_decoder_without_a_mask() -> None:
    found = finding(Subject.of(Reads().double(), "reads", dtype="float64"), "padding")
    assert [(each.name, verdict_of(each)) for each in found.cases] == [
        ("encoder inputs of two lengths, in steps", Verdict.SKIP),
        ("the encoder's output in the place of a padded input", Verdict.PASS),
    ]


def test_a_mask_that_is_lost_one_token_behind_whole_blocks_is_caught(subject: Subject) -> None:
    """Only the token in the last block decides about all of them."""
    name, model = "left, lengths around whole blocks", subject.model.model
    assert verdict_of(case(finding(subject, "padding"), name)) is Verdict.PASS

    def changed(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = call.get("attention_mask")
        lost = mask is not None and mask.ndim == 2 and mask.shape[1] == 17
        return args, {**call, "attention_mask": torch.ones_like(mask) if lost else mask}

    with model.register_forward_pre_hook(changed, with_kwargs=True):
        found = finding(Subject.of(subject.model, "blocks", dtype="float64"), "padding")
    broken = [each for each in found.cases if verdict_of(each) is Verdict.FAIL]
    assert [each.name for each in broken] == [name]
    assert broken[0].note == "a batch of 17 tokens"
