"""What may have been done to a vector where it stands."""

from __future__ import annotations

import torch
from torch import Tensor

from attncheck.faults.engine.rounding import with_bits
from attncheck.observation.edits import edits

LIMIT = 1e-13


def found(observed_ND: Tensor, right_ND: Tensor) -> list[str]:
    """The dtypes of the roundings that fit every vector."""
    fitting = edits(observed_ND, right_ND, LIMIT)
    return [
        dtype for how, fits_N, _, _, dtype in fitting if how == "rounded" and bool(fits_N.all())
    ]


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
    assert [dtype for how, fits_N, *_, dtype in fitting if bool(fits_N.all())] == ["11 bits"]


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
