"""Wrong losses by their value and by their slopes, each against torch's own cross entropy and
derivative.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.numerics.label_weighting import shifted, usual, wrong
from attncheck.numerics.losses import IGNORED, cross_entropy
from attncheck_probes.labels.loss_answer import smoothed, smoothing

LABELS_BT = torch.tensor([[3, 1, 4, 1, 5], [2, IGNORED, IGNORED, 0, IGNORED]])


def _logits() -> Tensor:
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum")


def _flat(logits_BTV: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1)[:-1], LABELS_BT.flatten()[1:])


def _rows(logits_BTV: Tensor) -> Tensor:
    means = [
        F.cross_entropy(row[:-1], label[1:])
        for row, label in zip(logits_BTV, LABELS_BT, strict=True)
    ]
    return torch.stack(means).mean()


def _no_first(logits_BTV: Tensor) -> Tensor:
    targets_BT = shifted(LABELS_BT, 1)
    targets_BT[0, 0] = targets_BT[1, 2] = IGNORED
    return _sum(logits_BTV, targets_BT) / 3


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "the loss of labels that are not shifted": lambda x: F.cross_entropy(
        x.flatten(0, 1), LABELS_BT.flatten()
    ),
    "the loss of labels that are shifted twice": lambda x: _sum(x, shifted(LABELS_BT, 2)) / 4,
    "the loss of labels that are shifted the wrong way": lambda x: (
        _sum(x[:, 1:], LABELS_BT[:, :-1]) / 6
    ),
    "the sum, which nothing divides": lambda x: _sum(x, shifted(LABELS_BT, 1)),
    "the sum divided by all positions": lambda x: _sum(x, shifted(LABELS_BT, 1)) / 10,
    "the sum divided by all positions that have a next one": lambda x: (
        _sum(x, shifted(LABELS_BT, 1)) / 8
    ),
    "the sum divided by the tokens that the mask shows": lambda x: (
        _sum(x, shifted(LABELS_BT, 1)) / 9
    ),
    "the sum divided by the number of rows": lambda x: _sum(x, shifted(LABELS_BT, 1)) / 2,
    "the mean of each row's mean, in which rows with few labels weigh too much": _rows,
    "the loss of labels that are shifted across the rows of the batch": _flat,
    "the loss of all labels but the first of each row": _no_first,
    "the loss with labels of -100 that count as token 0": lambda x: (
        _sum(x[:, :-1], LABELS_BT[:, 1:].clamp_min(0)) / 8
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_loss_is_the_only_one_of_its_value_and_slopes(words: str) -> None:
    logits_BTV = _logits().requires_grad_()
    loss = WRONG[words](logits_BTV)
    (slopes_BTV,) = torch.autograd.grad(loss, logits_BTV)
    logs_BTV = logits_BTV.detach().log_softmax(-1)
    mask_BT = torch.ones_like(LABELS_BT)
    mask_BT[1, -1] = 0
    candidates = list(wrong(LABELS_BT, 1, None, (0,), mask_BT))
    by_value = {
        each.words for each in candidates if abs(each.value(logs_BTV) - loss.item()) < 1e-12
    }
    by_slopes = {
        each.words
        for each in candidates
        if float((each.derivative(logs_BTV) - slopes_BTV).abs().max()) < 1e-12
    }
    assert by_value == by_slopes
    assert words in by_value
    assert len(by_value) <= 2


def test_the_usual_loss_is_the_cross_entropy_and_no_wrong_one() -> None:
    logits_BTV = _logits()
    right, logs_BTV = usual(LABELS_BT, 1, 100), logits_BTV.log_softmax(-1)
    want = cross_entropy(logits_BTV, LABELS_BT, 1, 100)
    assert right.value(logs_BTV) == pytest.approx(want.value, abs=1e-13)
    assert right.total == pytest.approx(5 / 100)
    assert all(
        abs(each.value(logs_BTV) - want.value) > want.budget
        for each in wrong(LABELS_BT, 1, 100, (0,))
    )


def test_a_row_without_labels_makes_a_mean_of_means_not_a_number() -> None:
    labels_BT = torch.tensor([[3, 1, 4], [2, IGNORED, IGNORED]])
    logs_BTV = _logits()[:, :3].log_softmax(-1)
    means = [
        each.value(logs_BTV)
        for each in wrong(labels_BT, 1, None, (0,))
        if each.words.startswith("the mean of each row")
    ]
    assert [value != value for value in means] == [True, False]


def test_smoothed_labels_give_their_share_back() -> None:
    logits_BTV = _logits()
    right, logs_BTV = usual(LABELS_BT, 1, None), logits_BTV.log_softmax(-1)
    loss = F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), LABELS_BT[:, 1:].flatten(), label_smoothing=0.15
    ).item()
    assert smoothing(loss, logs_BTV, right) == pytest.approx(0.15)
    assert smoothed(logs_BTV, right, 0.15) == pytest.approx(loss)
    assert smoothing(smoothed(logs_BTV, right, 2.0), logs_BTV, right) is None
