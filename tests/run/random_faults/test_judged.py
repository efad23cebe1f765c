"""Which explanations of a composed fault are right, and which places."""

from __future__ import annotations

import pytest

from attncheck.core.finding import Diagnosis, Location
from attncheck.core.observed_part import ObservedPart
from attncheck.run.random_faults.judged import explains, places
from attncheck.run.random_faults.parts import CHANGES, PLACINGS, WHATS, parse

ROUNDED = parse("what=stored-keys,how=round:8,at=model.layers.1.self_attn,when=cached")
EVERYWHERE = parse("what=keys,how=slot:1")
MODULES = ("model.layers.0.self_attn", "model.layers.1.self_attn")


@pytest.mark.parametrize(
    ("diagnosis", "right"),
    [
        (None, None),
        (Diagnosis(fault="own key/value store", how="repaired"), None),
        (Diagnosis(fault="cache-low-precision", how="reproduced"), True),
        (Diagnosis(fault="position-restart", how="reproduced"), False),
    ],
)
def test_names(diagnosis: Diagnosis | None, right: bool | None) -> None:
    assert explains(ROUNDED, 1, diagnosis) is right


@pytest.mark.parametrize(
    ("part", "right"),
    [
        (ObservedPart(what="keys", how="rounded", layers=(1,)), True),
        (ObservedPart(what="keys", how="rounded"), True),
        (ObservedPart(what="keys", how="rounded", layers=(0,)), False),
        (ObservedPart(what="values", how="rounded", layers=(1,)), False),
        (ObservedPart(what="keys", how="scaled", layers=(1,)), False),
    ],
)
def test_measured_parts(part: ObservedPart, right: bool) -> None:
    assert explains(ROUNDED, 1, Diagnosis(fault="", how="measured", parts=(part,))) is right


def test_every_change_of_everything_has_right_words() -> None:
    for what in WHATS:
        kinds = PLACINGS if what == "positions" else ("window",) if what == "cells" else CHANGES
        for kind in kinds:
            found = Diagnosis(fault="label-shift", how="reproduced")
            assert explains(parse(f"what={what},how={kind}"), None, found) is False


def test_places() -> None:
    assert places(ROUNDED, MODULES, Location(module="model.layers.1.self_attn", layer=1))
    assert places(ROUNDED, MODULES, Location(module="model.layers.1", layer=1))
    assert not places(ROUNDED, MODULES, Location(module="model.layers.0.self_attn", layer=0))
    assert not places(ROUNDED, MODULES, None)
    assert places(EVERYWHERE, MODULES, Location(module="model.layers.0.self_attn", layer=0))
    assert not places(EVERYWHERE, MODULES, Location(module="model.layers.1.self_attn", layer=1))
    other = parse("what=keys,how=layer")
    assert not places(other, MODULES, Location(module="model.layers.0.self_attn", layer=0))
    assert places(other, MODULES, Location(module="model.layers.1.self_attn", layer=1))


def test_positions_show_in_the_first_layer_that_has_them_or_in_a_table() -> None:
    moved = parse("what=positions,how=offset:1")
    assert places(moved, MODULES, Location(module="model.layers.0.self_attn", layer=0))
    assert places(moved, MODULES, Location(module="transformer.wpe"))
    assert not places(moved, MODULES, Location(module="model.layers.1.self_attn", layer=1))


def test_a_place_without_a_change_claims_nothing() -> None:
    assert explains(ROUNDED, 1, Diagnosis(fault="", how="measured")) is None
