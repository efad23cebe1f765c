"""The first module that differs: in order of execution, beyond its own floor, with NaN beyond it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attncheck.numerics.first_divergence import FirstDivergence, first_divergence
from attncheck.numerics.module_outputs import ModuleOutput, ModuleOutputs, recording

EVENTS = (("a", "out"), ("b.c", "in"), ("b.c", "out"))


def outputs(*prints: Tensor, floor: float = 1e-9, width: int = 0) -> ModuleOutputs:
    return {
        event: ModuleOutput(each, floor, width) for event, each in zip(EVENTS, prints, strict=True)
    }


def ones() -> Tensor:
    return torch.ones(1, 4, 2, dtype=torch.float64)


def moved(position: int, by: float) -> Tensor:
    changed = ones()
    changed[0, position] += by
    return changed


def test_the_first_in_the_order_of_execution_is_named_with_its_position() -> None:
    good, bad = outputs(ones(), ones(), ones()), outputs(ones(), moved(2, 0.5), moved(0, 9.0))
    assert first_divergence(good, bad) == FirstDivergence(("b.c", "in"), 2, 0.5)


def test_an_input_that_differs_is_the_fault_of_the_module_around_it() -> None:
    assert FirstDivergence(("b.c", "in"), 0, 1.0).home == "b"
    assert FirstDivergence(("b.c", "out"), 0, 1.0).home == "b.c"
    assert FirstDivergence(("b", "in"), 0, 1.0).home == "b"


@pytest.mark.parametrize(("by", "differs"), [(0.9e-6, False), (1.1e-6, True)])
def test_a_difference_counts_from_a_thousand_times_the_floor_on(by: float, differs: bool) -> None:
    good, bad = outputs(ones(), ones(), ones()), outputs(moved(1, by), ones(), ones())
    assert (first_divergence(good, bad) is not None) is differs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_beyond_any_floor(value: float) -> None:
    good, bad = outputs(ones(), ones(), ones()), outputs(moved(1, value), ones(), ones())
    found = first_divergence(good, bad, times=1e12)
    assert found is not None
    assert (found.position, found.max_abs_diff) == (1, math.inf)


def test_padding_is_not_compared_unless_values_are_lost_there() -> None:
    real_BT = torch.tensor([[False, True, True, True]])
    good = outputs(ones(), ones(), ones())
    assert first_divergence(good, outputs(moved(0, 1.0), ones(), ones()), real_BT=real_BT) is None
    lost = outputs(moved(0, math.nan), ones(), ones())
    assert first_divergence(good, lost, real_BT=real_BT) is None
    assert first_divergence(good, lost, real_BT=real_BT, lost_anywhere=True) is not None


def test_a_part_of_a_sharded_output_is_not_compared() -> None:
    good, part = (outputs(ones(), ones(), ones(), width=width) for width in (8, 4))
    moved_part = {**part, EVENTS[0]: ModuleOutput(moved(0, 9.0), width=4)}
    assert first_divergence(good, moved_part, skip_parts=True) is None
    assert first_divergence(good, moved_part) is not None


def test_chunks_of_one_forward_are_recorded_one_after_the_other() -> None:
    module = nn.Linear(3, 5).double()
    hidden_BTW = torch.randn(2, 6, 3, dtype=torch.float64)
    with torch.no_grad(), recording({"linear": module}) as whole:
        module(hidden_BTW)
    with torch.no_grad(), recording({"linear": module}) as chunked:
        module(hidden_BTW[:, :4]), module(hidden_BTW[:, 4:])
    assert not module._forward_hooks
    assert first_divergence(whole.outputs((2, 6)), chunked.outputs((2, 6))) is None
    assert chunked.outputs((2, 6), calls=1) == {}
    assert [each.width for each in whole.outputs((2, 6)).values()] == [3, 5]
