"""Moved weights: the model is given them without their being touched, and autograd keeps how to
make them, not the weights.
"""

from __future__ import annotations

from typing import Any, final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.numerics import rebuilt, widen
from attncheck.numerics.rebuilt import Rebuilding, made_by
from attncheck.numerics.shift import Shift, drawn
from attncheck.numerics.widen import Widen


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 4)


def _ways(x_BI: Tensor, layer: nn.Linear) -> dict[str, Any]:
    weight_OI = layer.weight
    return {
        "module": lambda: layer(x_BI),
        "turned": lambda: x_BI @ weight_OI.T + layer.bias,
        "t()": lambda: torch.addmm(layer.bias, x_BI, weight_OI.t()),
        "in pieces": lambda: (
            torch.cat([F.linear(x_BI, weight_OI[:1]), F.linear(x_BI, weight_OI[1:])], -1)
            + layer.bias
        ),
        "by keyword": lambda: F.linear(x_BI, weight=weight_OI, bias=layer.bias),
    }


@pytest.mark.parametrize("way", ["module", "turned", "t()", "in pieces", "by keyword"])
def test_every_use_of_a_weight_sees_it_moved(layer: nn.Linear, way: str) -> None:
    x_BI = torch.randn(3, 6)
    (direction,) = drawn([layer.weight], seed=1)
    moved_OI = layer.weight.double() + 0.5 * torch.outer(direction.left_O, direction.right_I)
    before_OI = layer.weight.clone()
    with torch.no_grad(), Widen(), Shift([direction], torch.tensor(0.5, dtype=torch.float64)):
        got_BO = _ways(x_BI, layer)[way]()
    want_BO = x_BI.double() @ moved_OI.T + layer.bias.double()
    assert got_BO.dtype == torch.float64
    assert float((got_BO - want_BO.detach()).abs().max()) < 1e-15
    assert torch.equal(layer.weight, before_OI)


def test_the_step_has_the_derivative_along_the_direction(layer: nn.Linear) -> None:
    x_BI = torch.randn(3, 6)
    (direction,) = drawn([layer.weight], seed=1)
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with Widen(), Rebuilding(), Shift([direction], step):
        total = layer(x_BI).pow(2).sum()
        (slope,) = torch.autograd.grad(total, [step])
    out_BO = x_BI.double() @ layer.weight.double().T + layer.bias.double()
    along_BO = x_BI.double() @ torch.outer(direction.right_I, direction.left_O)
    assert float(slope) == pytest.approx(float((2 * out_BO * along_BO).sum().detach()), rel=1e-13)


def test_a_detached_weight_has_no_derivative(layer: nn.Linear) -> None:
    directions = drawn([layer.weight], seed=1)
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with Widen(), Shift(directions, step):
        out_BO = F.linear(torch.randn(3, 6), layer.weight.detach(), layer.bias)
    assert torch.autograd.grad(out_BO.sum(), [step], allow_unused=True) == (None,)


@final
class Watching(torch.autograd.graph.saved_tensors_hooks):
    """Notes how many numbers each tensor has that a graph would hold."""

    def __init__(self) -> None:
        self.held: list[int] = []
        super().__init__(self._pack, lambda kept: kept)

    def _pack(self, saved: Tensor) -> Tensor:
        self.held.append(saved.numel())
        return saved


def test_the_graph_holds_no_widened_weight(layer: nn.Linear) -> None:
    layer.requires_grad_(False)
    x_BI = torch.randn(3, 6, requires_grad=True)
    watching = Watching()
    with Widen(), watching:
        layer(x_BI)
    assert watching.held.count(layer.weight.numel()) == 1, "without it the widened weight is kept"
    with Widen(), Rebuilding():
        out_BO = layer(x_BI)
        made = len(rebuilt._made)
        (gradient_BI,) = torch.autograd.grad(out_BO.sum(), [x_BI])
    assert made == 0, "the widened weight is gone before the backward pass"
    assert torch.allclose(gradient_BI, layer.weight.sum(0).expand(3, 6), atol=1e-6)


def test_what_is_made_is_forgotten_with_it() -> None:
    weight_OI = torch.ones(2, 3)
    made = made_by(lambda: weight_OI.double())
    kept = made.t() @ torch.ones(2, dtype=torch.float64)
    del made
    with Rebuilding():
        total = (kept.requires_grad_() * 2).sum()
    assert torch.autograd.grad(total, [kept])[0].tolist() == [2.0, 2.0, 2.0]


def test_a_weight_as_large_as_a_vocabulary_goes_slice_by_slice(
    layer: nn.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_BI = torch.randn(3, 6)
    with torch.no_grad(), Widen():
        want_BO = layer(x_BI)
        monkeypatch.setattr(widen, "SLICE", 7)
        got_BO = layer(x_BI)
        unbiased_BO = F.linear(x_BI, layer.weight)
    assert float((got_BO - want_BO).abs().max()) < 1e-15
    assert float((unbiased_BO + layer.bias.double() - want_BO).abs().max()) < 1e-15
