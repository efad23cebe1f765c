"""Which key a query reads that it should not, or should read and does not: from the fault that
reproduces the failure.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Location
from attncheck.diagnosis.reproduce import Search
from attncheck.faults.engine.expected import View


def with_source(search: Search, place: Location | None) -> Location | None:
    """The location with its source position, where the fault is one of who may read whom."""
    found, wrong = search.found, search.failure.wrong
    if (
        found is None
        or place is None
        or place.query_position is None
        or found.hypothesis.change is None
        or not wrong
    ):
        return place
    keys: list[int] = []

    def seen(view: View, promised: Tensor, allowed: Tensor) -> None:
        if view.layer == (place.layer or 0) and not keys:
            differs_S = (promised != allowed)[:, :, place.query_position].any(0).any(0)
            keys.extend(differs_S.nonzero().flatten().tolist()[:1])

    spec = wrong[0].spec
    change = found.hypothesis.change_of(spec)
    assert change is not None
    try:
        search.failure.trusted.logits(spec, replace(change, seen=seen))
    except Unsupported:
        return place
    return replace(place, source_position=keys[0]) if keys else place
