"""The reference attention against numbers worked out by hand, and its fits against known scales and
heads.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.reference import (
    AttentionParams,
    attend,
    fitted_scale,
    grouped,
    noise_floor,
    params_of,
    tiled,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def test_two_keys_by_hand() -> None:
    query = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[0.0], [1.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[10.0], [20.0]]]], dtype=torch.float64)
    got = attend(query, key, value, AttentionParams(scale=0.5, allowed=causal(2), heads=(0,)))
    share = math.e / (1 + math.e)
    assert got.flatten().tolist() == pytest.approx([10.0, 10 * (1 - share) + 20 * share])


def test_a_sink_takes_its_share_and_a_cap_bends_the_scores() -> None:
    query = key = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    value = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    allowed = torch.ones(1, 1, dtype=torch.bool)
    sunk = attend(
        query,
        key,
        value,
        AttentionParams(scale=1.0, allowed=allowed, heads=(0,), sinks_H=torch.zeros(1)),
    )
    assert float(sunk) == pytest.approx(math.e / (math.e + 1))
    capped = AttentionParams(
        scale=1.0, allowed=allowed, heads=(0,), sinks_H=torch.zeros(1), cap=0.5
    )
    bent = math.exp(0.5 * math.tanh(2.0))
    assert float(attend(query, key, value, capped)) == pytest.approx(bent / (bent + 1))


def test_a_query_that_may_read_nothing_gets_zeros() -> None:
    allowed = torch.zeros(1, 1, dtype=torch.bool)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    assert (
        float(attend(one, one, one, AttentionParams(scale=1.0, allowed=allowed, heads=(0,)))) == 0.0
    )


@pytest.mark.parametrize("value", [None, math.nan])
def test_an_empty_row_can_also_be_the_mean_of_all_values_or_anything_else(
    value: float | None,
) -> None:
    allowed = torch.zeros(1, 3, dtype=torch.bool)
    query, key, values = drawn(1, 1, 1, 2), drawn(1, 1, 3, 2), drawn(1, 1, 3, 2, seed=1)
    params = AttentionParams(scale=1.0, allowed=allowed, heads=(0,), empty_row=value)
    got = attend(query, key, values, params)[0, 0, 0]
    if value is None:
        torch.testing.assert_close(got, values[0, 0].mean(0))
    else:
        assert bool(got.isnan().all())


def test_a_low_precision_can_be_computed_in_float32_and_comes_back() -> None:
    query, key, value = (drawn(1, 1, 9, 8, seed=seed).bfloat16() for seed in range(3))
    params = AttentionParams(scale=0.35, allowed=causal(9), heads=(0,))
    exact = attend(query.double(), key.double(), value.double(), params)
    wide = attend(query, key, value, params, at_least=torch.float32)
    assert wide.dtype == torch.bfloat16
    assert torch.equal(wide, exact.bfloat16())


def test_a_call_states_its_parameters() -> None:
    query, key = torch.zeros(1, 4, 2, 16), torch.zeros(1, 2, 2, 16)
    mask = torch.tensor([[0.0, -1e9], [-2.0, 0.0]])[None, None]
    options = {"softcap": 30.0, "s_aux": torch.zeros(4)}
    call = AttentionCall(nn.Module(), query, key, key, mask, options, lambda *_, **__: None)
    params = params_of(call, causal(2))
    assert (params.scale, params.cap, params.heads) == (0.25, 30.0, (0, 0, 1, 1))
    assert params.sinks_H is options["s_aux"]
    assert params.bias is not None
    assert params.bias.flatten().tolist() == [0.0, 0.0, -2.0, 0.0]


def test_groups_are_contiguous_and_tiles_are_not() -> None:
    assert grouped(6, 2) == (0, 0, 0, 1, 1, 1)
    assert tiled(6, 2) == (0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize("heads", [grouped(4, 2), tiled(4, 2), (1, 1, 0, 0)])
def test_scale_and_heads_are_read_off_the_weights(heads: tuple[int, ...]) -> None:
    query, key = drawn(1, 4, 9, 8), drawn(1, 2, 9, 8, seed=1)
    terms = AttentionParams(scale=0.3, allowed=causal(9), heads=heads)
    identity = torch.eye(9, dtype=torch.float64).expand(1, 2, 9, 9)
    weights = attend(query, key, identity, terms).transpose(1, 2)
    scale, found = fitted_scale(weights, query, key, terms)
    assert scale == pytest.approx(0.3, rel=1e-12)
    assert found == heads


def test_the_floor_of_float32_is_rounding_and_that_of_float64_is_smaller() -> None:
    query, key, value = (drawn(1, 2, 9, 8, seed=seed) for seed in range(3))
    terms = AttentionParams(scale=0.35, allowed=causal(9), heads=(0, 1))

    def compute(dtype: torch.dtype, piecewise: bool) -> Tensor:
        return attend(query.to(dtype), key.to(dtype), value.to(dtype), terms, piecewise=piecewise)

    single, double = noise_floor(compute, torch.float32), noise_floor(compute, torch.float64)
    assert 1e-8 < single < 1e-5
    assert 1e-17 < double < 1e-13


def test_scores_added_up_onto_a_bias_are_the_same_scores_with_more_rounding() -> None:
    query, key, value = (drawn(1, 2, 9, 8, seed=seed) for seed in range(3))
    bias = 4 * drawn(1, 2, 9, 9, seed=3)
    terms = AttentionParams(scale=0.35, allowed=causal(9), heads=(0, 1), bias=bias)
    usual, piecewise = (attend(query, key, value, terms, piecewise=each) for each in (False, True))
    assert 0 < float((usual - piecewise).abs().max()) < 1e-12
    sunk = replace(terms, bias=None, sinks_H=drawn(2, seed=4))
    usual, piecewise = (attend(query, key, value, sunk, piecewise=each) for each in (False, True))
    assert 0 < float((usual - piecewise).abs().max()) < 1e-14
    nothing = replace(terms, allowed=torch.zeros(9, 9, dtype=torch.bool))
    assert not attend(query, key, value, nothing, piecewise=True).any()
