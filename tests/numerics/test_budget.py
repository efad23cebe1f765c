"""Noise is measured: where it comes from, how it follows the precision, and that NaN cannot hide in
it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from conftest import tiny_llama
from torch import nn

from attncheck.core import registry
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.precision import Precision
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM, measure_budget
from attncheck.numerics.divergence import compare_logits
from attncheck.numerics.promote import Promote
from attncheck.numerics.reorder import Reorder
from attncheck.run.runner import finding_of
from attncheck.targets.load import load


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("float64", 1e-16, 1e-12), ("float32", 1e-8, 1e-3), ("bfloat16", 1e-4, 1.0)],
)
def test_the_floor_follows_the_dtype(dtype: str, low: float, high: float) -> None:
    assert low < load("builtin:gqa", Settings(dtype=dtype)).budget.floor < high


def test_a_hidden_float32_softmax_lifts_the_floor_of_float64() -> None:
    subject = load("builtin:gqa", Settings(attn="eager", dtype="float64"))
    promoted = subject.budget.floor
    subject.loaded.precision = Precision(torch.float64)
    plain = Subject(subject.loaded, subject.loaded.precision)
    assert plain.budget.floor > 1e4 * promoted


def test_reordering_changes_rounding_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(8, 8, generator=generator) for _ in range(2))
    with Reorder(0.5):
        products = (
            left @ right,
            torch.nn.functional.linear(left, right),
            left.softmax(-1),
            left.mean(-1),
        )
    plain = left @ right, torch.nn.functional.linear(left, right), left.softmax(-1), left.mean(-1)
    for changed, usual in zip(products, plain):
        assert torch.allclose(changed, usual, atol=1e-5)
    assert not torch.equal(products[0], plain[0])


def test_promotion_rewrites_explicit_float32() -> None:
    x = torch.ones(3, dtype=torch.float64)
    with Promote():
        assert x.float().dtype == x.to(torch.float32).dtype == torch.float64
        assert torch.softmax(x, dim=-1, dtype=torch.float32).dtype == torch.float64
    assert x.float().dtype == torch.float32


def test_values_that_are_not_finite_are_counted_first() -> None:
    want = torch.zeros(1, 2, 3)
    got = want.clone()
    got[0, 1, 0], got[0, 0, 1] = math.nan, 1.0
    apart = compare_logits(got, want, 0.5)
    assert (apart.nonfinite, apart.max_abs, apart.first_position, apart.positions) == (1, 1.0, 0, 2)


def test_two_identical_tensors_of_nan_are_not_equal() -> None:
    both = torch.full((1, 2, 3), math.nan)
    assert compare_logits(both, both, 1.0).nonfinite == 6


def test_the_first_wrong_position_and_the_flips() -> None:
    want = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    got = torch.tensor([[[1.0, 0.0], [1.0, 0.4], [0.0, 3.0]]])
    apart = compare_logits(got, want, 0.1, offset=10)
    assert (apart.first_position, apart.top1_flips, apart.max_abs, apart.scale) == (11, 1, 3.0, 1.0)
    assert apart.kl > 1.0


def test_nothing_compared_says_so() -> None:
    assert compare_logits(torch.zeros(1, 0, 4), torch.zeros(1, 0, 4), 1.0).positions == 0


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot compare logits \(1, 2, 3\) with \(1, 2, 4\)"):
        compare_logits(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), 1.0)


def test_the_budget_is_far_below_a_fault() -> None:
    subject = load("builtin:gqa", Settings(dtype="float32"))
    moved = subject.logits(ForwardSpec((subject.inputs.other(subject.inputs.row, 0, 1),)))
    assert (
        float((moved - subject.logits(ForwardSpec(subject.inputs.tokens))).abs().max())
        > 1e3 * subject.budget.value
    )


def test_a_buffer_that_every_forward_moves_does_not_count_as_rounding() -> None:
    subject = Subject.of(tiny_llama(), "llama", dtype="float64")
    layer = subject.model.model.layers[0]
    layer.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def drift(module: nn.Module, args: Any, output: Any) -> Any:
        module.seen.add_(0.01)
        return (
            (output[0] + module.seen, *output[1:])
            if isinstance(output, tuple)
            else output + module.seen
        )

    layer.register_forward_hook(drift)
    assert subject.budget.value < 1e-11
    case = next(iter(registry.load("repeatability").measure(subject)))
    assert verdict_of(case) is Verdict.FAIL


@pytest.mark.parametrize("period", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_counter_of_calls_on_a_module_does_not_count_as_rounding(period: int, dtype: str) -> None:
    """Python keeps it, so no buffer shows it; it may come round between two calls."""
    subject = Subject.of(tiny_llama(), "llama", dtype=dtype)
    calls = itertools.count()

    def louder(module: nn.Module, args: Any, output: Any) -> Any:
        return output * (1 + 0.01 * (next(calls) % period))

    subject.model.model.layers[1].mlp.register_forward_hook(louder)
    assert subject.budget.value < (1e-11 if dtype == "float64" else 1e-3)
    assert "the same forward twice is not the same" in subject.budget.source
    found = finding_of(subject, registry.load("repeatability"))
    assert found.verdict is Verdict.FAIL


def _constant(value: float) -> Any:
    return lambda: torch.full((1, 4, 8), value, dtype=torch.float64)


@pytest.mark.parametrize(("scale", "floor"), [(1.0, 2.0**-52), (1000.0, 1000 * 2.0**-52)])
def test_no_floor_is_below_one_unit_of_the_last_place(scale: float, floor: float) -> None:
    plain_BTV = _constant(scale)()
    found = measure_budget(_constant(scale), plain_BTV, "float64", contextlib.nullcontext)
    assert found.floor == floor
    assert found.value == HEADROOM * floor


def test_tables_count_where_their_rounding_is_the_larger() -> None:
    moved = [0.0]

    def forward() -> torch.Tensor:
        return torch.full((1, 4, 8), 1.0 + moved[0], dtype=torch.float64)

    @contextlib.contextmanager
    def nudged(by: float) -> Iterator[None]:
        moved[0] = by
        yield
        moved[0] = 0.0

    large, small = (
        measure_budget(
            forward,
            forward(),
            "float64",
            contextlib.nullcontext,
            {"rounding of stored tables": partial(nudged, by)},
        )
        for by in (1e-3, 0.0)
    )
    assert large.floor == pytest.approx(1e-3)
    assert "rounding of stored tables" in large.source
    assert small.floor == 2.0**-52
    assert "reorder floor" in small.source
