"""A failing case taken apart: the trusted path beside both sides."""

from __future__ import annotations

import torch
from probing import loaded

from attncheck.diagnosis.failure import max_diff_at, open_case, unmeasured
from attncheck.model.forward_spec import ForwardSpec


def test_the_healthy_model_equals_the_trusted_path() -> None:
    for target in ("builtin:gqa", "builtin:mha", "builtin:window", "builtin:moe"):
        subject = loaded(target)
        spec = (
            ForwardSpec(subject.inputs.tokens, chunks=(9, 1, subject.inputs.length - 10)),
            ForwardSpec(subject.inputs.tokens),
        )
        assert open_case(subject, unmeasured("healthy", *spec)).wrong == ()


def test_values_that_are_not_finite_must_be_so_on_both_sides() -> None:
    left, right = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    left[0, 0, 0] = torch.nan
    assert max_diff_at(left, right) == float("inf")
    right[0, 0, 0] = torch.nan
    assert max_diff_at(left, right) == 0.0
    assert max_diff_at(left, right, torch.tensor([[False, True]])) == 0.0
