"""Each faulty model is caught, none is misnamed, and the healthy model does not fail."""

from __future__ import annotations

import pytest

from attncheck.core.verdict import Verdict
from faulty_models.examining import Examined, examined, healthy_finding
from faulty_models.models import FAULTY_MODELS, KINDS, FaultyModel

EXAMINED: dict[str, Examined] = {}
CAUGHT, NAMED, MISNAMED, LOCATED = 0.95, 0.85, 0.02, 0.95


@pytest.mark.parametrize(
    "model", sorted(FAULTY_MODELS, key=lambda each: each.kind), ids=lambda each: each.name
)
def test_caught_and_not_misnamed(model: FaultyModel) -> None:
    seen = EXAMINED[model.name] = examined(model)
    for probe in model.probes:
        assert healthy_finding(model.kind, probe).verdict not in (Verdict.FAIL, Verdict.ERROR)
    assert seen.caught
    assert not seen.misnamed, seen.finding and seen.finding.diagnosis


def test_there_are_enough_of_them() -> None:
    assert len(FAULTY_MODELS) >= 40
    assert len(KINDS) >= 15


def test_rates() -> None:
    if len(EXAMINED) < len(FAULTY_MODELS):
        pytest.skip("rates need all faulty models")
    caught = [seen for seen in EXAMINED.values() if seen.caught]
    placed = [seen.located for seen in caught if seen.located is not None]
    assert len(caught) >= CAUGHT * len(EXAMINED)
    assert sum(seen.named for seen in caught) >= NAMED * len(caught)
    assert sum(seen.misnamed for seen in caught) <= MISNAMED * len(caught)
    assert sum(placed) >= LOCATED * len(placed)
