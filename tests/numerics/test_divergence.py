"""Comparisons: one answer for NaN, and logits compared in stretches give the result of the whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from attncheck.numerics import divergence
from attncheck.numerics.divergence import (
    beyond,
    beyond_at,
    compare_logits,
    max_abs,
    max_abs_diff,
    max_abs_finite,
    slices,
)
from attncheck_probes.kv_repeat.allocations import Allocations

B, T, V = 2, 96, 512


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    want_BTV = torch.randn(B, T, V, generator=generator)
    got_BTV = want_BTV.clone()
    got_BTV[1, 70:, 5] += 40.0
    return got_BTV, want_BTV


@pytest.mark.parametrize("numbers", [1, B * V * 7, B * V * T])
def test_stretches_give_what_the_whole_gives(
    pair: tuple[torch.Tensor, torch.Tensor], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare_logits(*pair, budget=1.0, offset=3)
    monkeypatch.setattr(divergence, "SLICE", numbers)
    parts = compare_logits(*pair, budget=1.0, offset=3)
    assert replace(parts, mean_abs=whole.mean_abs) == whole
    assert parts.mean_abs == pytest.approx(whole.mean_abs, rel=1e-9)
    assert (parts.first_position, parts.positions, parts.max_abs) == (
        73,
        B * T,
        pytest.approx(40.0, abs=1e-4),
    )
    assert parts.top1_flips > 0


def test_equal_logits_count_every_position_of_every_row(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    _, want_BTV = pair
    found = compare_logits(want_BTV, want_BTV.clone(), budget=1.0)
    assert (found.positions, found.top1_flips, found.kl) == (B * T, 0, 0.0)


def test_a_value_that_is_not_finite_is_found_in_the_last_stretch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(divergence, "SLICE", V)
    want_BTV = torch.ones(1, T, V)
    got_BTV = want_BTV.clone()
    got_BTV[0, T - 1, 3] = float("nan")
    found = compare_logits(got_BTV, want_BTV, budget=0.5)
    assert (found.nonfinite, found.first_position, found.max_abs) == (1, T - 1, 0.0)
    assert max_abs_finite(got_BTV) == 1.0


def test_no_copy_of_all_logits_is_made(
    pair: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergence, "SLICE", B * V * 4)
    assert max(part.numel() for part in slices(pair[0])) == B * V * 4
    with Allocations() as made:
        compare_logits(*pair, budget=1.0)
    rows = divergence.KL_ROWS * V
    assert (
        max(torch.Size(shape).numel() for shape in made.shapes)
        <= max(B * V * 4, rows)
        < B * T * V / 8
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_always_beyond_the_budget(bad: float) -> None:
    want = torch.ones(2, 3)
    got = want.clone()
    got[1, 2] = bad
    for left, right in ((got, want), (want, got)):
        assert beyond(left, right, 1e9)
        assert beyond_at(left, right, 1e9, -1).tolist() == [False, True]
    assert beyond(got, got, 1e9) is math.isnan(bad)  # equal infinities are equal


def test_a_difference_of_exactly_the_budget_is_within_it() -> None:
    got, want = torch.tensor([1.0, 3.5]), torch.tensor([1.0, 3.0])
    assert (max_abs(got), max_abs_diff(got, want)) == (3.5, 0.5)
    assert not beyond(got, want, 0.5)
    assert beyond(got, want, 0.49)
    assert beyond(got, want, float("nan"))
    assert not beyond(got[:0], want[:0], 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_excuses_no_case(bad: float) -> None:
    want = torch.zeros(1, 3, 2)
    got = want.clone()
    got[0, 1, 1] = bad
    assert divergence.beyond(got, want, 1.0)
    assert not divergence.finitely_beyond(got, want, 1.0)
    assert divergence.finitely_beyond(want + 2.0, want, 1.0)
