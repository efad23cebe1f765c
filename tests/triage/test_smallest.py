"""Delta debugging and halving find the smallest that fails, and stop when their passes are spent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attncheck.core.finding import Verdict, verdict_of
from attncheck.core.settings import Settings
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D
from attncheck.model.subject import Subject
from attncheck.targets.load import load
from attncheck.triage import axes, smallest
from attncheck.triage.call_pattern import CallPattern, pattern_of
from attncheck.triage.material import depth, material, shallower, shorter


@pytest.mark.parametrize("wanted", [{3}, {0, 7}, {2, 3, 5}, set(range(8))])
def test_ddmin_keeps_exactly_what_is_needed(wanted: set[int]) -> None:
    def fails(kept: Sequence[int]) -> bool:
        return wanted <= set(kept)

    assert set(smallest.ddmin(range(8), fails, lambda: False)) == wanted


def test_ddmin_stops_when_its_passes_are_spent() -> None:
    assert smallest.ddmin(range(8), lambda kept: True, lambda: True) == list(range(8))


@pytest.mark.parametrize("least", [2, 3, 9, 24])
def test_halving_finds_the_least_length(least: int) -> None:
    assert smallest.least(2, 24, lambda n: n >= least, lambda: False) == least


def test_a_fault_of_two_axes_is_cut_down_to_these_two() -> None:
    subject = load("builtin:broken-positions", Settings())
    rows = material(subject, ())
    wide = CallPattern(schedule="chunks", batch=3, mask="2d", attn="eager", cache="static")
    assert axes.fails(axes.plain_case(subject, rows, wide))
    small, found = smallest.of_pattern(subject, rows, wide, 60)
    assert small == CallPattern(schedule="chunks")
    assert (found.words, found.tokens, found.layers) == ("fed in uneven chunks on a cache", 3, 1)
    assert not found.spent


def test_layers_and_rows_come_back_whole(subject: Subject) -> None:
    before, row = subject.logits(ForwardSpec(subject.inputs.tokens)), subject.inputs.row
    with shallower(subject, 1):
        short = shorter(subject, 5)
        assert depth(short) == 1
        assert short.inputs.row == row[:5]
        assert not before[:, :5].equal(short.logits(ForwardSpec(short.inputs.tokens)))
    assert (depth(subject), subject.inputs.row) == (4, row)
    assert before.equal(subject.logits(ForwardSpec(subject.inputs.tokens)))


@pytest.mark.parametrize("name", ["gqa", "mha", "window", "alibi", "moe"])
def test_every_crossing_of_axes_holds_on_healthy_models(name: str) -> None:
    subject = load(f"builtin:{name}", Settings())
    rows, offered = material(subject, ()), axes.values(subject)
    crossed = list(axes.crossed(offered))
    assert all(len(pattern.axes) > 1 for pattern in crossed)
    for pattern in [*axes.alone(offered, ()), *crossed]:
        try:
            case = axes.plain_case(subject, rows, pattern)
        except axes.Unsupported:
            continue
        assert verdict_of(case) is Verdict.PASS, pattern


def test_crossing_lets_every_two_values_meet(subject: Subject) -> None:
    offered = axes.values(subject)
    met = {frozenset(pair) for each in axes.crossed(offered) for pair in axes.pairs(vars(each))}
    pairs = {
        frozenset(((one, a), (two, b)))
        for one in offered
        for two in offered
        if one < two
        for a in offered[one]
        for b in offered[two]
    }
    assert pairs <= met


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ForwardSpec(((1, 2, 3),)), "one plain forward"),
        (ForwardSpec(((1, 2, 3),), chunks=(1, 1, 1)), "decoded token by token on a cache"),
        (
            ForwardSpec(((1, 2, 3),), chunks=(1, 2), attn="eager"),
            "under `eager` attention, fed in uneven chunks on a cache",
        ),
        (
            ForwardSpec(((1, 2), (3, 4)), mask=Mask2D(((0, 1), (1, 1)))),
            "left-padded, in a batch of 2",
        ),
        (
            ForwardSpec(((1, 2),), mask=Mask4D(((0, 0),)), positions=((0, 1),)),
            "with a 4D mask, with `position_ids` passed",
        ),
    ],
)
def test_a_pass_reads_as_the_axes_it_moves(spec: ForwardSpec, words: str) -> None:
    assert str(pattern_of(spec)) == words
