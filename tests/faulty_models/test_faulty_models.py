"""Every animal is caught by a probe that may say so, none is called by a wrong name, and no healthy
twin fails.
"""

from __future__ import annotations

import pytest

from attncheck.core.finding import Verdict
from faulty_models.models import ANIMALS, KINDS, Animal
from faulty_models.examining import Seen, examined, twin_finding

SEEN: dict[str, Seen] = {}
CAUGHT, NAMED, MISNAMED, LOCATED = 0.95, 0.85, 0.02, 0.95


@pytest.mark.parametrize(
    "animal", sorted(ANIMALS, key=lambda each: each.kind), ids=lambda each: each.name
)
def test_caught_and_not_misnamed(animal: Animal) -> None:
    seen = SEEN[animal.name] = examined(animal)
    for probe in animal.probes:
        assert twin_finding(animal.kind, probe).verdict not in (Verdict.FAIL, Verdict.ERROR)
    assert seen.caught
    assert not seen.misnamed, seen.finding and seen.finding.diagnosis


def test_the_zoo_is_large_enough() -> None:
    assert len(ANIMALS) >= 40
    assert len(KINDS) >= 15


def test_rates() -> None:
    if len(SEEN) < len(ANIMALS):
        pytest.skip("rates need the whole zoo")
    caught = [seen for seen in SEEN.values() if seen.caught]
    placed = [seen.located for seen in caught if seen.located is not None]
    assert len(caught) >= CAUGHT * len(SEEN)
    assert sum(seen.named for seen in caught) >= NAMED * len(caught)
    assert sum(seen.misnamed for seen in caught) <= MISNAMED * len(caught)
    assert sum(placed) >= LOCATED * len(placed)
