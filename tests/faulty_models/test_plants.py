"""A sample of the smallest faults; `plants.py` runs them all."""

from __future__ import annotations

import pytest

from faulty_models.plants import Plant, caught_by, plants

STEP = 37
SAMPLE = list(plants())[5::STEP]


@pytest.mark.parametrize("plant", SAMPLE, ids=lambda each: f"{each.target}, {each.name}")
def test_the_smallest_fault_is_caught(plant: Plant) -> None:
    assert caught_by(plant)
