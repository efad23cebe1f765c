"""Padded batches: where the real tokens, the padding and the positions are."""

from __future__ import annotations

from dataclasses import replace

import torch

from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.padding import (
    compare_rows,
    left_padded,
    pad_id,
    pad_rows,
    without_padding,
)
from attncheck.model.subject import Subject


def test_the_padded_rows_hold_the_rows_alone_on_the_right_side(subject: Subject) -> None:
    batch, row = pad_rows(subject, (2,)), subject.inputs.row
    assert batch.rows == (row, row[2:])
    assert batch.tokens("left") == (row, (0, 0, *row[2:]))
    assert batch.tokens("right") == (row, (*row[2:], 0, 0))
    assert [
        row[at] for row, at in zip(batch.tokens("left"), batch.real("left"), strict=True)
    ] == list(batch.rows)
    assert [
        row[at] for row, at in zip(batch.tokens("right"), batch.real("right"), strict=True)
    ] == list(batch.rows)


def test_mask_and_positions_start_at_the_first_real_token(subject: Subject) -> None:
    batch, length = pad_rows(subject, (2,)), subject.inputs.length
    assert batch.mask("left") == Mask2D(((1,) * length, (0, 0, *(1,) * (length - 2))))
    assert batch.mask("right") == Mask2D(((1,) * length, (*(1,) * (length - 2), 0, 0)))
    assert batch.positions("left")[1] == (0, 0, *range(length - 2))
    assert batch.positions("right")[1] == tuple(range(length))


def test_salted_padding_is_ordinary_text_and_changes_with_the_salt(subject: Subject) -> None:
    batch = pad_rows(subject)
    first, second = batch.tokens("left", salt=1), batch.tokens("left", salt=2)
    amount = batch.padding(2)
    assert first[2][:amount] != second[2][:amount]
    assert set(first[2][:amount]) <= set(subject.inputs.pool)
    assert first[2][amount:] == second[2][amount:] == batch.rows[2]


def test_amounts_are_one_and_an_odd_third(subject: Subject) -> None:
    batch = pad_rows(subject)
    assert [batch.padding(row) for row in range(3)] == [0, 1, (subject.inputs.length // 3) | 1]


def test_the_padding_id_is_the_models_own_where_it_has_one(subject: Subject) -> None:
    assert pad_id(subject) == subject.model.config.pad_token_id == 0
    subject.model.config.pad_token_id = None
    assert pad_id(subject) == subject.inputs.pool[0]


def test_two_forwards_serve_all_rows_even_where_nothing_is_remembered(subject: Subject) -> None:
    batch = pad_rows(subject)
    run: list[int] = []
    usual = left_padded(subject, batch)
    cast = replace(usual, mask=Mask2D(batch.mask("left").rows, dtype="bool"))
    assert subject.can.takes_positions
    subject.passes.memory_limit = 0
    subject.passes.forget()
    subject.passes.on_forward = run.append
    case = compare_rows(subject, batch, "mask-bool", cast, usual)
    assert len(run) == 2
    assert case.divergence.positions == sum(map(len, batch.rows))


def test_logits_under_the_padding_are_zero_and_no_others(subject: Subject) -> None:
    batch = pad_rows(subject, (2,))
    logits_BTV = torch.ones(2, batch.length, 3)
    kept_BTV = without_padding(logits_BTV, batch.spec("left"))
    assert kept_BTV[..., 0].tolist() == [
        [1.0] * batch.length,
        [0.0, 0.0] + [1.0] * (batch.length - 2),
    ]
    assert without_padding(logits_BTV, ForwardSpec(batch.rows[:1])) is logits_BTV


def test_the_first_difference_is_counted_from_the_start_of_the_batch(subject: Subject) -> None:
    batch = pad_rows(subject, (2,))
    usual = left_padded(subject, batch)
    tokens = (subject.inputs.other(usual.tokens[0], 0, 3), *usual.tokens[1:])
    found = compare_rows(subject, batch, "other", replace(usual, tokens=tokens), usual)
    assert found.divergence.first_position == 0
