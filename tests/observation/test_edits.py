"""What may have been done to a vector where it stands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attncheck.faults.engine.rounding import with_bits
from attncheck.observation.edits import edits

LIMIT = 1e-13


def found(observed_ND: Tensor, right_ND: Tensor) -> list[str]:
    """The dtypes of the roundings that fit every vector."""
    fitting = edits(observed_ND, right_ND, LIMIT)
    return [edit.dtype for edit in fitting if edit.how == "rounded" and bool(edit.fits_N.all())]


def test_a_cast_is_told_by_its_dtype() -> None:
    right_ND = torch.randn(3, 16, dtype=torch.float64)
    assert found(right_ND.bfloat16().double(), right_ND)[0] == "bfloat16"
    assert found(right_ND.half().double(), right_ND)[0] == "float16"


def test_rounding_that_keeps_small_exponents_is_told_by_its_bits() -> None:
    right_ND = 1e-7 * torch.randn(3, 16, dtype=torch.float64).exp()
    rounded_ND = with_bits(right_ND, 11)
    assert not torch.equal(rounded_ND, right_ND.half().double())
    limit = 1e-13 * float(right_ND.max())
    fitting = edits(rounded_ND, right_ND, limit)
    assert [edit.dtype for edit in fitting if bool(edit.fits_N.all())] == ["11 bits"]


def test_other_numbers_are_no_rounding() -> None:
    right_ND = torch.randn(3, 16, dtype=torch.float64)
    assert not found(right_ND * 1.001, right_ND)


def test_another_order_of_the_entries_is_told() -> None:
    right_ND = torch.randn(3, 8, dtype=torch.float64)
    merged_ND = right_ND.reshape(3, 2, 4).mT.reshape(3, 8)
    fitting = [how for how, fits_N, *_ in edits(merged_ND, right_ND, LIMIT) if bool(fits_N.all())]
    assert fitting == ["reordered"]
    merged_ND[2] = merged_ND[2].flip(0)  # one order must serve every vector
    fits_by_how = {how: fits_N.tolist() for how, fits_N, *_ in edits(merged_ND, right_ND, LIMIT)}
    assert fits_by_how["reordered"] == [True, True, False]


def test_the_weight_of_a_norm_is_told_where_several_vectors_show_it() -> None:
    right_ND, weight_D = torch.randn(4, 8, dtype=torch.float64), torch.randn(8).double()
    seen_ND = right_ND * weight_D * torch.tensor([1.0, 0.5, 2.0, 3.0]).double()[:, None]

    def told(count: int) -> list[str]:
        fitting = edits(seen_ND[:count], right_ND[:count], LIMIT)
        return [how for how, fits_N, *_ in fitting if bool(fits_N.all())]

    assert told(4) == ["weighted"]
    assert not told(2)


@pytest.mark.parametrize(("factor", "how"), [(0.0, "zero"), (0.5, "scaled")])
def test_some_channels_of_a_vector_are_zeroed_or_scaled(factor: float, how: str) -> None:
    right_ND = torch.randn(3, 16, dtype=torch.float64)
    seen_ND = right_ND.clone()
    seen_ND[:, :8] *= factor
    fitting = [edit for edit in edits(seen_ND, right_ND, LIMIT) if bool(edit.fits_N.all())]
    assert (fitting[0].how, fitting[0].in_channels) == (how, True)
    assert torch.allclose(fitting[0].predicted_ND, seen_ND, atol=LIMIT, rtol=0)
    if fitting[0].amount_N is not None:
        assert fitting[0].amount_N.tolist() == pytest.approx([factor] * 3)


def test_two_changed_channels_are_no_evidence_of_one_factor() -> None:
    right_ND = torch.randn(3, 16, dtype=torch.float64)
    seen_ND = right_ND.clone()
    seen_ND[:, :2] *= 0.5
    assert not any(
        edit.in_channels and edit.fits_N.any() for edit in edits(seen_ND, right_ND, LIMIT)
    )


def test_one_vector_added_to_several_is_told_from_several() -> None:
    right_ND = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    added_D = right_ND[5] + 1.0
    kinds = {each.how: each for each in edits(right_ND[:4] + added_D, right_ND[:4], 1e-9)}
    assert kinds["moved"].fits_N.tolist() == [True] * 4
    other_ND = right_ND[:4] + right_ND[2:6]
    kinds = {each.how: each for each in edits(other_ND, right_ND[:4], 1e-9)}
    assert kinds["moved"].fits_N.tolist() == [False] * 4
