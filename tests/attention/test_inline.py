"""Attention seen in a model's own arithmetic: every way of writing it gives the same record, and
what is no attention none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, weights_of
from attncheck.attention.inline import observe_inline
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.attention.reference import attend, params_of
from attncheck.core.errors import Unsupported

B, H, T, D = 2, 3, 5, 4
Heads = Callable[[Tensor, Tensor, Tensor], Tensor]


def _mask() -> Tensor:
    return torch.full((T, T), -1e9, dtype=torch.float64).triu(1)


def _matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.5 + _mask()).softmax(-1) @ v


def _batched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.reshape(B * H, T, D) for each in (q * 0.5, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, T, T) + _mask()
    weights = F.softmax(scores.view(B * H, T, T), dim=-1)
    return torch.bmm(F.dropout(weights, p=0.3, training=False), v).view(B, H, T, D)


def _fused_add(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.reshape(B * H, T, D) for each in (q, k, v))
    bias = _mask().expand(B * H, T, T)
    scores = bias.baddbmm(batch1=q, batch2=k.transpose(1, 2), beta=1.0, alpha=0.5)
    return torch.bmm(torch.softmax(scores, -1), v).view(B, H, T, D)


def _equation(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.permute(2, 0, 1, 3) for each in (q, k, v))
    scores = torch.einsum("ibnd,jbnd->bnij", q, k) * 0.5 - 1e9 * torch.ones(
        T, T, dtype=q.dtype
    ).triu(1)
    return torch.einsum("bnij,jbnd->ibnd", F.softmax(scores, dim=3), v).permute(1, 2, 0, 3)


def _in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.mT)
    scores /= 2
    scores.masked_fill_(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    return torch.matmul(scores.softmax(dim=-1), v)


def _multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    below = torch.ones(T, T, dtype=q.dtype).tril()
    return F.softmax(q @ k.mT / 2 * below - 1e4 * (1 - below), -1) @ v


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5)


def _written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + _mask()
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


def _of_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / 2 + _mask()).softmax(-1)
    return torch.einsum("bhqk,bhkd,de->bhqe", weights, v, torch.eye(D, dtype=q.dtype))


class Model(nn.Module):
    """One layer that attends in some way."""

    def __init__(self, attend: Heads) -> None:
        super().__init__()
        self.layer = Layer(attend)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, attend: Heads) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.project = nn.Parameter(
            torch.randn(3, D, H * D, generator=generator, dtype=torch.float64)
        )
        self.attend = attend

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = (
            F.linear(hidden, each.T).view(B, T, H, D).transpose(1, 2) for each in self.project
        )
        return self.attend(q, k, v)


def _hidden() -> Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _observed(
    attend: Heads, change: Callable[[AttentionCall], Any] | None = None
) -> tuple[list[AttentionCall], Tensor, list[str]]:
    """The calls seen, the output, and the refusals."""
    calls: list[AttentionCall] = []

    def handler(call: AttentionCall) -> Any:
        calls.append(call)
        if change:
            change(call)
        return call.run()

    model = Model(attend)
    with torch.no_grad(), observe_inline(model, handler) as refusals:
        out = model(_hidden())
    return calls, out, list(refusals.values())


WAYS = [
    _matmul,
    _batched,
    _fused_add,
    _equation,
    _in_place,
    _multiplied,
    _fused,
    _written_out,
    _of_three,
]


@pytest.mark.parametrize("attend", WAYS)
def test_every_way_of_writing_it_gives_the_same_record(attend: Heads) -> None:
    (call,), out, refusals = _observed(attend)
    assert torch.allclose(out, Model(attend)(_hidden()), atol=1e-14)
    assert (call.inline, call.caveat, refusals) == (True, "", [])
    plain, *_ = _observed(_matmul)[0]
    scale = call.options["scaling"]
    assert torch.allclose(call.query_BHTD * scale, plain.query_BHTD * 0.5, atol=1e-14)
    assert torch.allclose(call.key_BGSD, plain.key_BGSD, atol=1e-14)
    assert torch.allclose(call.value_BGSD, plain.value_BGSD, atol=1e-14)
    weights_BHTS = weights_of(call)
    assert torch.allclose(weights_BHTS, weights_of(plain), atol=1e-14)
    assert torch.equal(
        weights_of(call, blank=True) > 0,
        torch.ones(T, T, dtype=torch.bool).tril().expand(B, H, T, T),
    )
    assert torch.allclose(
        call.run()[0], (weights_BHTS @ call.value_BGSD).transpose(1, 2), atol=1e-14
    )


@pytest.mark.parametrize("attend", WAYS)
def test_what_a_handler_changes_takes_effect(attend: Heads) -> None:
    def change(call: AttentionCall) -> None:
        call.query_BHTD = call.query_BHTD * 0
        call.mask = torch.zeros(1, 1, T, T, dtype=torch.float64)
        call.options = {**call.options, "is_causal": False}

    calls, out, _ = _observed(attend, change)
    assert torch.allclose(
        out, calls[0].value_BGSD.mean(2, keepdim=True).expand(B, H, T, D), atol=1e-14
    )


def test_one_observer_inside_another_sees_what_that_one_changes() -> None:
    def halve(call: AttentionCall) -> Any:
        call.query_BHTD = call.query_BHTD * 0.5
        return call.run()

    seen: list[Tensor] = []

    def watch(call: AttentionCall) -> Any:
        seen.append(weights_of(call))
        return call.run()

    model = Model(_matmul)
    with torch.no_grad(), observe_inline(model, halve), observe_inline(model, watch):
        out = model(_hidden())
    expected, changed, _ = _observed(
        _matmul, lambda call: setattr(call, "query_BHTD", call.query_BHTD * 0.5)
    )
    assert torch.allclose(out, changed)
    assert torch.allclose(seen[0], weights_of(expected[0]), atol=1e-14)


def test_keys_that_heads_share_stay_shared() -> None:
    def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k[:, :1].mT * 0.5).softmax(-1) @ v[:, :1]

    (call,), _, _ = _observed(shared)
    assert call.key_BGSD.shape == call.value_BGSD.shape == (B, 1, T, D)
    assert call.caveat == ""


def _capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (2 * torch.tanh(q @ k.mT / 2)).softmax(-1) @ v


def _squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).square().softmax(-1) @ v


def test_a_soft_cap_is_recorded_with_its_scale() -> None:
    (call,), out, _ = _observed(_capped)
    assert not call.caveat
    assert call.options["softcap"] == 2.0
    assert call.options["scaling"] == pytest.approx(1.0, rel=1e-12)
    params = params_of(call, allowed_BHTS(call))
    ours_BTHD = attend(call.query_BHTD, call.key_BGSD, call.value_BGSD, params)
    assert torch.allclose(ours_BTHD.transpose(1, 2), out)


def _reweighted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) ** 2 @ v


@pytest.mark.parametrize(
    ("attend", "doubt"),
    [
        (_squared, "its scores are more than a multiple of the products of queries and keys"),
        (_reweighted, "its weights are changed after the softmax"),
    ],
)
def test_arithmetic_that_is_something_else_is_shown_with_a_doubt(attend: Heads, doubt: str) -> None:
    (call,), out, _ = _observed(attend)
    assert call.caveat == doubt
    assert torch.allclose(call.run()[0].transpose(1, 2), out), "it can be run again all the same"
    call.options = {**call.options, "scaling": 2 * call.options["scaling"]}
    with pytest.raises(Unsupported, match=doubt):
        call.run()


def _masked_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1) * torch.ones(T, T).tril()
    return weights / weights.sum(-1, keepdim=True) @ v


def _masked_after_a_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 2 * torch.tanh(q @ k.mT / 2)
    return scores.masked_fill(torch.ones(T, T).triu(1).bool(), -1e9).softmax(-1) @ v


@pytest.mark.parametrize("attend", [_masked_after, _masked_after_a_cap])
def test_a_key_can_be_added_wherever_the_mask_is_applied(attend: Heads) -> None:
    (call,), _, _ = _observed(attend)
    assert torch.equal(allowed_BHTS(call)[0, 0], torch.ones(T, T).tril().bool())
    before = weights_of(call, blank=True)
    with_allowed(call, allowed_BHTS(call) | torch.eye(T).bool().roll(1, 1))
    added = weights_of(call, blank=True)[0, 0] > 0
    assert torch.equal(added, (before[0, 0] > 0) | torch.eye(T).bool().roll(1, 1))


def _over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def _powers_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    powers = (q @ k.mT).exp()
    return (powers / powers.sum(-2, keepdim=True)) @ v


def _two_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + v @ k.mT).softmax(-1) @ v


def _twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).softmax(-1) @ v


def _no_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1)


def _buffered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    held = torch.zeros(B, H, T, T, dtype=q.dtype)
    held[:] = q @ k.mT
    return held.softmax(-1) @ v


@pytest.mark.parametrize(
    ("attend", "reason"),
    [
        (_over_queries, "the softmax is not over the last axis"),
        (_two_products, "its scores are a sum of several products"),
        (_twice, "its scores pass more than one softmax"),
        (_no_values, "its weights are not multiplied with values"),
        (_buffered, "scores are written into a buffer"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_sentence(attend: Heads, reason: str) -> None:
    calls, out, refusals = _observed(attend)
    assert (calls, refusals) == ([], [reason])
    assert torch.equal(out, Model(attend)(_hidden())), "and computed as ever"


def test_powers_whose_sums_are_not_of_the_keys_are_no_weights() -> None:
    calls, _, refusals = _observed(_powers_over_queries)
    assert (calls, refusals) == ([], [])


def test_products_without_a_softmax_are_nothing() -> None:
    calls, _, refusals = _observed(lambda q, k, v: (q @ k.mT / math.sqrt(D)) @ v)
    assert (calls, refusals) == ([], [])


def test_gradients_pass_through_an_observed_layer() -> None:
    model = Model(_batched)
    with observe_inline(model, lambda call: call.run()):
        watched = torch.autograd.grad(model(_hidden()).sum(), model.layer.project)[0]
    alone = torch.autograd.grad(model(_hidden()).sum(), model.layer.project)[0]
    assert torch.allclose(watched, alone, atol=1e-12)
