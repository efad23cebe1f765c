"""The first diverging module, whatever it is."""

from __future__ import annotations

import pytest
from probing import loaded
from torch import Tensor
from zoo.animals import at_layer, hooked, next_key

from attncheck import registry
from attncheck.diagnosis.diagnose import diagnose
from attncheck.finding import Location
from attncheck.selftest import finding_of


def ahead(hidden_BTW: Tensor) -> Tensor:
    return hidden_BTW + 0.1 * hidden_BTW.roll(-1, 1)


def place(target: str, plant: object, probe: str = "future-token") -> Location:
    subject = loaded(target)
    assert subject.can.kernel is None
    with plant(subject):  # type: ignore[operator]
        found = diagnose(subject, finding_of(subject, registry.load(probe)))
    assert found.location is not None
    return found.location


@pytest.mark.parametrize("path", ["model.layers.1.mlp", "model.layers.3.input_layernorm", "model.layers.2.mlp.down_proj"])
def test_a_leak_outside_attention_is_where_it_was_planted(path: str) -> None:
    found = place("builtin:gqa", hooked(path, ahead))
    assert found.module == path
    assert found.layer == int(path.split(".")[2])
    assert found.note == "outside attention"
    assert found.source_position == 23
    assert found.query_position == 22


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_fault_of_one_layer_is_in_that_layer(layer: int) -> None:
    found = place("builtin:gqa", at_layer(layer, next_key))
    assert (found.module, found.layer, found.note) == (f"model.layers.{layer}.self_attn", layer, "")
    assert (found.query_position, found.source_position) == (0, 1)
