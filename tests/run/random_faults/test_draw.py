"""A seed, a target and a number give the same faults again; all that is drawn can be said as text."""

from __future__ import annotations

from itertools import islice

from probing import loaded

from attncheck.run.random_faults.draw import WEIGHTS, drawn
from attncheck.run.random_faults.parts import WHATS, WHENS, parse
from attncheck.run.random_faults.sites import sites_of


def test_drawing_is_reproducible_and_covers_all_that_a_model_has() -> None:
    sites = sites_of(loaded("builtin:gqa"))
    faults = list(islice(drawn(sites, 0, 5), 600))
    assert faults == list(islice(drawn(sites, 0, 5), 600))
    assert faults != list(islice(drawn(sites, 1, 5), 600))
    assert {each.what for each in faults} == set(WHATS) - {"states"} == set(WEIGHTS) - {"states"}
    assert {each.when for each in faults} == set(WHENS)
    assert all(parse(str(each)) == each for each in faults)
