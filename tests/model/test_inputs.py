"""Inputs reach the borders that the config names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import transformers

from attncheck.core.errors import Unsupported
from attncheck.core.settings import Settings
from attncheck.model.facts import Boundary, boundaries_of
from attncheck.model.inputs import TEXT, build_inputs, choose_length
from attncheck.model.subject import Subject
from attncheck.targets.load import load


def test_the_length_lies_past_the_window_and_cuts_on_both_sides() -> None:
    inputs = load("builtin:window", Settings()).inputs
    assert inputs.boundaries == (Boundary(kind="window", length=8),)
    assert inputs.length > 2 * 8
    assert {7, 8, 9} <= set(inputs.cuts)


def test_a_border_is_reached_where_a_token_follows_it() -> None:
    facts = load("builtin:gqa", Settings()).facts
    borders = tuple(Boundary(kind="window", length=length) for length in (21, 22, 23, 24))
    inputs = build_inputs(
        replace(facts, boundaries=borders),
        transformers.LlamaConfig(),
        None,
        seed=0,
        prompt=None,
        length=24,
    )
    assert (inputs.boundaries, inputs.unreached) == (borders[:2], borders[2:])


@pytest.mark.parametrize(("length", "window", "half"), [(32, 8, 15), (24, 8, 12), (4, 2, 2)])
def test_the_row_is_halved_where_no_window_begins(length: int, window: int, half: int) -> None:
    inputs = load("builtin:gqa", Settings()).inputs
    border = Boundary(kind="window", length=window)
    assert replace(inputs, row=inputs.fresh(length, 1), boundaries=(border,)).half == half


def test_a_long_row_is_text_throughout() -> None:
    facts = load("builtin:gqa", Settings()).facts

    def tokenizer(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [3 + sum(map(ord, word)) % 100 for word in text.split()]}

    inputs = build_inputs(
        facts, transformers.LlamaConfig(), tokenizer, seed=0, prompt=None, length=130
    )
    words = [3 + sum(map(ord, word)) % 100 for word in (TEXT * 9).split()]
    assert inputs.from_text
    assert list(inputs.row) == words[:130]


def test_a_rope_switch_is_a_boundary() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    config = transformers.LlamaConfig(max_position_embeddings=16, rope_parameters=rope)
    assert boundaries_of(config, 16) == (Boundary(kind="rope switch", length=16),)


def test_a_window_out_of_reach_is_reported() -> None:
    subject = load("builtin:gqa", Settings())
    subject.config.sliding_window = 4096
    subject = Subject.of(subject.model)
    assert subject.inputs.unreached == (Boundary(kind="window", length=4096),)


def test_replaced_tokens_all_differ_and_others_stay() -> None:
    inputs = load("builtin:gqa", Settings()).inputs
    changed = inputs.other(inputs.row, 5, 9)
    assert [i for i, (old, new) in enumerate(zip(inputs.row, changed)) if old != new] == [
        5,
        6,
        7,
        8,
    ]


def test_the_end_of_a_text_is_replaced_and_other_special_ids_stay() -> None:
    inputs = load("builtin:gqa", Settings()).inputs
    assert inputs.eos == 2
    ended, special = inputs.other((inputs.row[0], 2, 1))[1:]
    assert ended in inputs.pool
    assert special == 1


def test_special_ids_stay_out() -> None:
    inputs = load("builtin:gqa", Settings()).inputs
    assert not {0, 1, 2} & set(inputs.row)
    assert inputs.eos == 2


def test_the_seed_draws_the_row() -> None:
    rows = [load("builtin:gqa", Settings(seed=seed)).inputs.row for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_too_short_a_context_is_said() -> None:
    facts = load("builtin:gqa", Settings()).facts
    short = facts.__class__(**{**vars(facts), "context": 3})
    with pytest.raises(
        Unsupported, match="a context of 3 tokens is too short: at least 4 are needed"
    ):
        choose_length(short, None)


def test_a_vocabulary_of_one_is_said() -> None:
    facts = load("builtin:gqa", Settings()).facts
    single = facts.__class__(**{**vars(facts), "vocab": 1})
    with pytest.raises(Unsupported, match="a vocabulary of 1 leaves no second token"):
        build_inputs(single, transformers.LlamaConfig(), None, seed=0, prompt=None, length=None)
