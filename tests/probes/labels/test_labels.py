"""labels: wrong shifts, wrong weights, terms of a model's own, decoder inputs made from labels,
accumulated steps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_llama
from probing import HEALTHY, case, caught_by, finding, loaded
from torch import Tensor

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.loss import home_of_loss
from attncheck.model.subject import Subject
from attncheck.numerics.losses import IGNORED, cross_entropy


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "labels")
    assert found.verdict is Verdict.PASS
    assert [control.detected for control in found.controls] == [True, True]


@pytest.mark.parametrize("fault", ["label-shift", "loss-weights"])
@pytest.mark.parametrize("target", ["builtin:gqa", "config:t5", "config:git", "config:masked/bert"])
def test_labels_shifted_once_too_often_or_left_out_are_named(target: str, fault: str) -> None:
    subject = loaded(target)
    broken = caught_by(subject, "labels", fault)
    assert broken is not None
    assert (broken.cause.fault, broken.cause.module) == (fault, home_of_loss(subject.model))


def _with_loss(loss: Any) -> Subject:
    """A Llama that computes its loss in another way."""
    model = tiny_llama()
    model.loss_function = loss
    return Subject.of(model, "loss", dtype="float64")


def _plain(logits: Tensor, labels: Tensor, vocab_size: int, **rest: Any) -> Tensor:
    return F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))


def _forgets_ignored(logits: Tensor, labels: Tensor, vocab_size: int, **rest: Any) -> Tensor:
    kept = labels[:, 1:].clamp_min(0).reshape(-1)
    return F.cross_entropy(logits[:, :-1].reshape(-1, vocab_size), kept)


def _mean_over_rows(logits: Tensor, labels: Tensor, vocab_size: int, **rest: Any) -> Tensor:
    rows = [F.cross_entropy(row[:-1], label[1:]) for row, label in zip(logits, labels, strict=True)]
    return torch.stack(rows).mean()


def test_labels_that_are_not_shifted_fail() -> None:
    found = finding(_with_loss(_plain), "labels")
    assert found.verdict is Verdict.FAIL
    assert found.cases[0].cause.fault == "label-shift"
    assert found.cases[0].note.endswith("it is the loss of labels that are not shifted")


def test_decoders_of_an_encoder_decoder_family_leave_the_shift_to_the_caller() -> None:
    found = finding(loaded("config:bart"), "labels")
    assert found.verdict is Verdict.WARN
    assert (
        "it is the loss of labels that are not shifted: the caller must shift them"
        in found.cases[0].note
    )
    assert "(`num_items_in_batch` changes nothing)" in case(found, "num_items_in_batch").note


def test_labels_of_minus_100_that_count_are_caught() -> None:
    found = finding(_with_loss(_forgets_ignored), "labels")
    assert found.verdict is Verdict.FAIL
    assert verdict_of(case(found, "labels of one row")) is Verdict.PASS
    assert verdict_of(case(found, "labels of -100")) is Verdict.FAIL


def test_a_mean_of_means_is_caught_in_the_padded_batch() -> None:
    found = finding(_with_loss(_mean_over_rows), "labels")
    assert verdict_of(case(found, "labels of one row")) is Verdict.PASS
    assert verdict_of(case(found, "padded batch")) is Verdict.FAIL
    assert (
        "each row's mean, in which rows with few labels weigh too much"
        in case(found, "padded batch").note
    )
    assert verdict_of(case(found, "num_items_in_batch")) is Verdict.WARN
    assert case(found, "num_items_in_batch").note.endswith(
        "the mean over its own labels (`num_items_in_batch` changes nothing)"
    )


def test_a_loss_of_other_logits_is_skipped() -> None:
    found = finding(loaded("config:prophetnet"), "labels")
    assert found.verdict is Verdict.SKIP
    assert "the loss does not come from the logits that the model returns" in str(found.skip_reason)


def test_a_model_that_says_it_takes_no_number_of_items_is_not_asked() -> None:
    subject = loaded("config:t5")
    subject.model.accepts_loss_kwargs = False
    found = finding(subject, "labels")
    assert found.verdict is Verdict.PASS
    assert "the trainer averages over the steps itself" in case(found, "num_items_in_batch").note


@pytest.mark.parametrize("target", ["config:masked/bert", "config:seq2seq/bart", "config:t5"])
def test_a_number_of_items_that_changes_nothing_is_a_warning(target: str) -> None:
    found = finding(loaded(target), "labels")
    assert found.verdict is Verdict.WARN
    assert {each.name for each in found.cases if verdict_of(each) is Verdict.WARN} == {
        "num_items_in_batch",
        "two steps",
    }
    assert [control.detected for control in found.controls] == [True, True]


@pytest.mark.parametrize("target", ["config:t5", "config:masked/bert"])
def test_a_loss_that_is_added_up_in_half_precision_is_decided_in_float64(target: str) -> None:
    found = finding(loaded(target, dtype="bfloat16"), "labels")
    verdicts = {each.name: verdict_of(each) for each in found.cases if each.judged}
    assert found.verdict is Verdict.WARN  # of the two cases that are wrong in any precision
    assert [name for name, verdict in verdicts.items() if verdict is Verdict.WARN] == [
        "num_items_in_batch",
        "two steps",
    ]
    assert verdicts["labels of one row"] is verdicts["padded batch"] is Verdict.PASS
    assert Verdict.FAIL not in verdicts.values()


def test_encoders_are_asked_for_other_tokens_than_they_are_given() -> None:
    found = finding(loaded("config:masked/neomme"), "labels")
    assert [control.detected for control in found.controls] == [True, True]


def test_cross_entropy_by_hand() -> None:
    logits = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5], [0.1, 0.9]]], dtype=torch.float64))
    labels = torch.tensor([[0, 1, IGNORED]])
    assert cross_entropy(logits, labels, 1).value == pytest.approx(
        -torch.log(torch.tensor(0.75)).item()
    )
    assert cross_entropy(logits, labels, 0).value == pytest.approx(
        (torch.log(torch.tensor(8.0))).item() / 2
    )
    assert cross_entropy(logits, labels, 0, items=4).value == pytest.approx(
        (torch.log(torch.tensor(8.0))).item() / 4
    )
    with pytest.raises(ValueError, match="no label counts"):
        cross_entropy(logits, labels, 2)


@pytest.mark.parametrize("again", [False, True])
def test_labels_that_come_shifted_are_not_shifted_again(again: bool) -> None:
    usual = tiny_llama().loss_function

    def loss(logits: Tensor, labels: Tensor, shift_labels: Any = None, **rest: Any) -> Tensor:
        if again and shift_labels is not None:
            labels, shift_labels = shift_labels, None
        return usual(logits, labels, shift_labels=shift_labels, **rest)  # type: ignore[no-any-return]

    found = case(finding(_with_loss(loss), "labels"), "labels that come shifted")
    assert verdict_of(found) is (Verdict.FAIL if again else Verdict.PASS)
    assert found.cause.fault == ("label-shift" if again else "")


def test_a_loss_that_takes_no_shifted_labels_is_not_asked_for_them() -> None:
    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **rest: Any) -> Tensor:
        return _plain(logits[:, :-1].reshape(-1, vocab_size), labels[:, 1:].flatten(), vocab_size)

    found = finding(_with_loss(loss), "labels")
    assert "labels that come shifted" not in {each.name for each in found.cases}
