"""Every token in turn: a leak in front of one position, in one row of a batch, is seen there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.model.token_sweep import TokenChange, compare_changes


@contextlib.contextmanager
def leaking(subject: Subject, position: int, row: int | None = None) -> Iterator[None]:
    """One position adds the next one's embedding, in one row of a batch or in all."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        if output.shape[1] <= position + 1 or (row is not None and row >= len(output)):
            return output
        rows, changed = slice(None) if row is None else row, output.clone()
        changed[rows, position] += 0.1 * output[rows, position + 1]
        return changed

    embedding = subject.model.get_input_embeddings()
    with embedding.register_forward_hook(hook), subject.passes.under("leak", on_cache_only=False):
        yield


def swept(subject: Subject, turn: int = 0) -> Any:
    row, usual = subject.inputs.row, ForwardSpec(subject.inputs.tokens)
    changes = [
        TokenChange(cut, subject.inputs.other(row, cut, cut + 1), f"token {cut}")
        for cut in range(1, len(row))
    ]
    return compare_changes(subject, usual, {"every token": changes}, turn)["every token"]


def test_a_healthy_model_moves_nowhere_in_front_of_any_token(subject: Subject) -> None:
    before = subject.loaded.forwards
    case = swept(subject)
    assert (case.max_abs, case.positions) == (0.0, sum(range(1, subject.inputs.length)))
    assert subject.loaded.forwards - before <= 8


@pytest.mark.parametrize("position", [0, 9, 22])
def test_a_leak_in_front_of_one_position_is_named(subject: Subject, position: int) -> None:
    with leaking(subject, position):
        case = swept(subject)
    assert case.beyond
    assert case.note == f"token {position + 1}"
    assert case.divergence.first_position == position


def test_a_leak_in_one_row_of_a_batch_is_told_from_the_rows_beside_it(subject: Subject) -> None:
    with leaking(subject, 6, row=7):
        case = swept(subject)
    assert case.beyond
    assert case.note == "token 7, in sequence 8 of a batch of 24"


def test_a_leak_in_one_row_shows_although_another_of_its_tokens_was_changed(
    subject: Subject,
) -> None:
    with leaking(subject, 6, row=12):
        case = swept(subject)
    assert case.beyond
    assert case.note == ("tokens from position 7 on changed, in sequence 13 of a batch of 24")


def test_a_row_that_differs_by_itself_is_no_leak(subject: Subject) -> None:
    def hook(module: Any, args: Any, output: Any) -> Any:
        return torch.cat([output[:1], output[1:] + 0.1]) if len(output) > 1 else output

    embedding = subject.model.get_input_embeddings()
    with embedding.register_forward_hook(hook), subject.passes.under("rows", on_cache_only=False):
        case = swept(subject)
    assert not case.beyond


def test_a_model_that_takes_no_batch_is_asked_row_by_row(subject: Subject) -> None:
    def hook(module: Any, args: Any) -> None:
        if len(args[0]) > 1:
            raise NotImplementedError("one row only")

    embedding = subject.model.get_input_embeddings()
    with (
        embedding.register_forward_pre_hook(hook),
        subject.passes.under("one", on_cache_only=False),
    ):
        case = swept(subject)
    assert (case.max_abs, case.positions) == (0.0, sum(range(1, subject.inputs.length)))
