"""Grouped heads written as products of named axes: every way gives the same record, and a model's
own layout gets back what a handler returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.inline import observe_inline
from attncheck.attention.reference import attend, params_of

B, G, R, T, D = 2, 2, 3, 5, 4
Way = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From q (B, T, G, R, D) and k, v (B, T, G, D) to a context (B, T, G, R, D)."""


def _visible() -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).tril()


def _softmax(scores: Tensor) -> Tensor:
    return (scores / 2).masked_fill(~_visible(), -torch.inf).softmax(-1)


def _rows_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = _softmax(torch.einsum("btgrd,bsgd->bgrts", q, k))
    return torch.einsum("bgrts,bsgd->btgrd", weights, v)


def _heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.permute(0, 2, 3, 1, 4), k.transpose(1, 2), v.transpose(1, 2)
    weights = _softmax(torch.einsum("bgrqd,bgkd->bgrqk", q, k))
    return torch.einsum("bgrqk,bgkd->bqgrd", weights, v)


def _broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.permute(0, 2, 3, 1, 4)
    k, v = (each.transpose(1, 2)[:, :, None] for each in (k, v))
    return (_softmax(q @ k.mT) @ v).permute(0, 3, 1, 2, 4)


class Layer(nn.Module):
    """Attends in one of these ways."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way

    def forward(self, q: Tensor, kv: Tensor) -> Tensor:
        k, v = kv[0], kv[1]
        return self.way(q, k, v)


def _inputs(groups: int = G) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (B, T, groups, R, D), (2, B, T, groups, D)
    q, kv = (torch.randn(each, generator=generator, dtype=torch.float64) for each in shapes)
    return q, kv


def _seen(way: Way, groups: int = G) -> tuple[AttentionCall, Tensor]:
    calls: list[AttentionCall] = []
    layer = Layer(way)

    def handler(call: AttentionCall) -> Any:
        calls.append(call)
        return call.run()

    with torch.no_grad(), observe_inline(layer, handler):
        out = layer(*_inputs(groups))
    (call,) = calls
    return call, out


@pytest.mark.parametrize("way", [_rows_first, _heads_first, _broadcast])
def test_groups_of_heads_are_read_in_every_layout(way: Way) -> None:
    call, out = _seen(way)
    q, kv = _inputs()
    assert torch.equal(out, way(q, kv[0], kv[1]))
    assert torch.equal(call.query_BHTD, q.flatten(2, 3).transpose(1, 2))
    assert torch.equal(call.key_BGSD, kv[0].transpose(1, 2))
    assert (call.caveat, round(call.options["scaling"], 12)) == ("", 0.5)
    params = params_of(call, _visible())
    expected = attend(call.query_BHTD, call.key_BGSD, call.value_BGSD, params)
    assert torch.allclose(expected, out.flatten(2, 3), atol=1e-14)


@pytest.mark.parametrize("way", [_rows_first, _heads_first, _broadcast])
def test_a_changed_value_goes_back_in_the_layout_of_the_model(way: Way) -> None:
    layer, (q, kv) = Layer(way), _inputs()

    def handler(call: AttentionCall) -> Any:
        call.value_BGSD = call.value_BGSD * torch.tensor([1.0, 3.0]).view(1, 2, 1, 1)
        return call.run()

    with torch.no_grad(), observe_inline(layer, handler):
        out = layer(q, kv)
    assert torch.allclose(out, way(q, kv[0], kv[1] * torch.tensor([[1.0], [3.0]])), atol=1e-14)


def test_one_key_head_for_all_needs_no_axis() -> None:
    def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = _softmax(torch.einsum("bthd,bsd->bhts", q[:, :, 0], k[:, :, 0]))
        return torch.einsum("bhts,bsd->bthd", weights, v[:, :, 0])[:, :, None]

    call, _ = _seen(shared, groups=1)
    assert (call.query_BHTD.shape, call.key_BGSD.shape) == ((B, R, T, D), (B, 1, T, D))
    assert call.caveat == ""


def test_heads_dealt_out_in_turn_are_not_taken_for_groups() -> None:
    def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.transpose(2, 3)
        weights = _softmax(torch.einsum("btrgd,bsgd->brgts", q, k))
        return torch.einsum("brgts,bsgd->btrgd", weights, v).transpose(2, 3)

    layer = Layer(tiled)
    with torch.no_grad(), observe_inline(layer, lambda call: call.run()) as refusals:
        out = layer(*_inputs())
    assert list(refusals.values()) == ["its heads are laid out in a way that is not understood"]
    q, kv = _inputs()
    assert torch.allclose(out, tiled(q, kv[0], kv[1]), atol=1e-14)


def test_a_column_behind_the_keys_is_that_of_the_sinks() -> None:
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -2.0], dtype=torch.float64)

    def with_sinks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q.flatten(2, 3), *map(_every, (k, v))))
        scores = (q @ k.mT / 2).masked_fill(~_visible(), -1e9)
        column = sinks.view(1, -1, 1, 1).expand(B, -1, T, 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
        return (weights @ v).transpose(1, 2).unflatten(2, (G, R))

    def _every(each: Tensor) -> Tensor:
        return each.repeat_interleave(R, 2)

    call, out = _seen(with_sinks)
    assert (call.caveat, torch.equal(call.options["s_aux"], sinks)) == ("", True)
    params = params_of(call, _visible())
    expected = attend(call.query_BHTD, call.key_BGSD, call.value_BGSD, params)
    assert torch.allclose(expected, out.flatten(2, 3), atol=1e-14)
