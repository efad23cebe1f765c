"""The fault that several measured parts amount to together."""

from __future__ import annotations

from attncheck.core.observed_part import How, What
from attncheck.observation.deviation import Deviation
from attncheck.observation.names import named
from attncheck.observation.summary import Extent, grouped_parts

LENGTH, WINDOW = 6, 2
LAYERS = Extent(layers=frozenset({0, 1}), rows=1, length=LENGTH, starts=(0,), window=WINDOW)


def cells(how: How, layer: int) -> list[Deviation]:
    """What lies beyond the window of a layer, read or not read."""
    return [
        Deviation(what="cells", how=how, layer=layer, row=0, head=0, heads=1, at=at, key=key)
        for at in range(LENGTH)
        for key in range(at - WINDOW + 1)
    ]


def test_layers_that_have_the_window_of_each_other_are_swapped() -> None:
    swapped = grouped_parts([*cells("hidden", 0), *cells("visible", 1)], LAYERS)
    assert named(swapped, LAYERS) == (("window-layers-swapped",), "window-layers-swapped")
    one = grouped_parts(cells("visible", 1), LAYERS)
    assert named(one, LAYERS) == (("window-ignored",), "window-ignored")


def stored(what: What, how: How, at: int, source: int | None) -> Deviation:
    place = None if source is None else (0, 0, source)
    return Deviation(
        what=what, how=how, layer=0, row=0, head=0, heads=1, at=at, source=place, start=5
    )


def test_a_slot_that_holds_what_an_empty_one_lacks_is_the_wrong_slot() -> None:
    both: tuple[What, What] = ("keys", "values")
    elsewhere = [stored(what, "other token", 1, 4) for what in both]
    lost = [stored(what, "zero", 4, None) for what in both]
    parts = grouped_parts([*elsewhere, *lost], LAYERS)
    assert named(parts, LAYERS) == (("cache-wrong-slot",), "cache-wrong-slot")
    alone = grouped_parts(lost, LAYERS)
    assert named(alone, LAYERS) == (("cache-drops-token",), "cache-drops-token")
    stale = grouped_parts(elsewhere, LAYERS)
    assert named(stale, LAYERS) == (("cache-stale",), "cache-stale")
