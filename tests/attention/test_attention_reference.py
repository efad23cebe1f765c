"""The judge's own attention against numbers worked out by hand, and its fits against scales and
heads that are known.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attncheck.attention.reference import (
    Terms,
    attend,
    fitted_scale,
    floor_of,
    grouped,
    tiled,
    turned,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def test_two_keys_by_hand() -> None:
    query = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[0.0], [1.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[10.0], [20.0]]]], dtype=torch.float64)
    got = attend(query, key, value, Terms(scale=0.5, allowed=causal(2), heads=(0,)))
    share = math.e / (1 + math.e)
    assert got.flatten().tolist() == pytest.approx([10.0, 10 * (1 - share) + 20 * share])


def test_a_sink_takes_its_share_and_a_cap_bends_the_scores() -> None:
    query = key = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    value = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    allowed = torch.ones(1, 1, dtype=torch.bool)
    sunk = attend(
        query, key, value, Terms(scale=1.0, allowed=allowed, heads=(0,), sinks_H=torch.zeros(1))
    )
    assert float(sunk) == pytest.approx(math.e / (math.e + 1))
    capped = Terms(scale=1.0, allowed=allowed, heads=(0,), sinks_H=torch.zeros(1), cap=0.5)
    bent = math.exp(0.5 * math.tanh(2.0))
    assert float(attend(query, key, value, capped)) == pytest.approx(bent / (bent + 1))


def test_a_query_that_may_read_nothing_gets_zeros() -> None:
    allowed = torch.zeros(1, 1, dtype=torch.bool)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    assert float(attend(one, one, one, Terms(scale=1.0, allowed=allowed, heads=(0,)))) == 0.0


def test_groups_are_contiguous_and_tiles_are_not() -> None:
    assert grouped(6, 2) == (0, 0, 0, 1, 1, 1)
    assert tiled(6, 2) == (0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize("heads", [grouped(4, 2), tiled(4, 2), (1, 1, 0, 0)])
def test_scale_and_heads_are_read_off_the_weights(heads: tuple[int, ...]) -> None:
    query, key = drawn(1, 4, 9, 8), drawn(1, 2, 9, 8, seed=1)
    terms = Terms(scale=0.3, allowed=causal(9), heads=heads)
    identity = torch.eye(9, dtype=torch.float64).expand(1, 2, 9, 9)
    weights = attend(query, key, identity, terms).transpose(1, 2)
    scale, found = fitted_scale(weights, query, key, terms)
    assert scale == pytest.approx(0.3, rel=1e-12)
    assert found == heads


@pytest.mark.parametrize("turn", ["half", "pairs"])
def test_turns_keep_lengths_and_depend_on_distance_only(turn: str) -> None:
    angles = torch.arange(7, dtype=torch.float64)[:, None] * torch.tensor(
        [1.0, 0.1], dtype=torch.float64
    )
    cos, sin = (f(torch.cat([angles, angles], -1))[None] for f in (torch.cos, torch.sin))
    same = drawn(1, 1, 1, 6).expand(1, 1, 7, 6)
    moved = turned(same, cos, sin, turn)  # type: ignore[arg-type]
    torch.testing.assert_close(moved.norm(dim=-1), same.norm(dim=-1))
    products = (moved @ moved.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(products[2, 0], products[5, 3])
    assert abs(float(products[2, 0] - products[3, 0])) > 1e-3
    torch.testing.assert_close(moved[..., 4:], same[..., 4:])


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="another length or width"):
        turned(drawn(1, 1, 3, 4), drawn(1, 5, 4), drawn(1, 5, 4), "half")


def test_the_floor_of_float32_is_rounding_and_that_of_float64_is_smaller() -> None:
    query, key, value = (drawn(1, 2, 9, 8, seed=seed) for seed in range(3))
    terms = Terms(scale=0.35, allowed=causal(9), heads=(0, 1))

    def compute(dtype: torch.dtype, piecewise: bool) -> Tensor:
        return attend(query.to(dtype), key.to(dtype), value.to(dtype), terms, piecewise)

    single, double = floor_of(compute, torch.float32), floor_of(compute, torch.float64)
    assert 1e-8 < single < 1e-5
    assert 1e-17 < double < 1e-13


def test_scores_added_up_onto_a_bias_are_the_same_scores_with_more_rounding() -> None:
    query, key, value = (drawn(1, 2, 9, 8, seed=seed) for seed in range(3))
    bias = 4 * drawn(1, 2, 9, 9, seed=3)
    terms = Terms(scale=0.35, allowed=causal(9), heads=(0, 1), bias=bias)
    usual, piecewise = (attend(query, key, value, terms, each) for each in (False, True))
    assert 0 < float((usual - piecewise).abs().max()) < 1e-12
    sunk = terms.but(bias=None, sinks_H=drawn(2, seed=4))
    usual, piecewise = (attend(query, key, value, sunk, each) for each in (False, True))
    assert 0 < float((usual - piecewise).abs().max()) < 1e-14
    nothing = terms.but(allowed=torch.zeros(9, 9, dtype=torch.bool))
    assert not attend(query, key, value, nothing, True).any()
