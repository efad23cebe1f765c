"""Function modes see what a model computes also where its forward is compiled."""

from __future__ import annotations

from healthy.wrapped import compiled_forward

from attncheck.core.settings import Settings
from attncheck.targets.load import in_memory, settle_dtype


def test_the_budget_of_a_compiled_forward_is_that_of_its_rounding() -> None:
    subject = settle_dtype(in_memory(compiled_forward(), "compiled", Settings()), "float32")
    assert 1e-7 < subject.budget.value < 1e-4
    assert subject.can.sees_history
