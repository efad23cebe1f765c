"""What a module keeps between calls is named where putting it back makes the call right."""

from __future__ import annotations

import pytest
from ports.catalogue import PORTS
from probing import finding
from torch import nn

from attncheck.core.finding import Finding
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.module_memory import ModuleMemory
from attncheck.model.subject import Subject


def found_in(port: str, probe: str) -> Finding:
    build = next(each.build for each in PORTS if each.name == port)
    subject = Subject.of(build(True), port, dtype="float64")
    return diagnose(subject, finding(subject, probe))


def test_a_memory_of_answers_is_measured_and_placed() -> None:
    found = found_in("Remembering", "batch-rows")
    assert found.diagnosis is not None
    assert found.location is not None
    assert found.diagnosis.how == "measured"
    assert found.diagnosis.sentence == (
        "`Remembering.memory` is kept between calls: it held nothing when the model was loaded. "
        "With that put back the same call gives the right logits, to 0."
    )
    assert found.location.module == "Remembering"


@pytest.mark.parametrize(
    ("port", "fault"),
    [
        ("TrainedSwitch", "kept-from-training"),
        ("LeftRaised", "kept-from-error"),
        ("FirstDtype", "kept-from-dtype"),
    ],
)
def test_what_another_call_left_keeps_its_name(port: str, fault: str) -> None:
    found = found_in(port, "repeatability")
    assert found.diagnosis is not None
    assert found.diagnosis.fault == fault


def test_memory_is_put_back_for_a_while() -> None:
    model = PORTS[0].build(False)
    memory = ModuleMemory.of(model)
    assert memory.changed() == []
    model.__dict__["count"] = 3
    assert memory.changed() == [("", "count")]
    with memory.put_back([("", "count")]):
        assert "count" not in vars(model)
    assert vars(model)["count"] == 3


def test_hooks_that_a_flag_of_then_installs_again_are_removed() -> None:
    inner = nn.Linear(2, 2)
    memory = ModuleMemory.of(inner)
    inner.installed = True  # type: ignore[assignment]
    inner.register_forward_hook(lambda *given: None)
    with memory.put_back(memory.changed()):
        assert not hasattr(inner, "installed")
        inner.register_forward_hook(lambda *given: None)
        assert len(inner._forward_hooks) == 2
    assert inner.installed
    assert len(inner._forward_hooks) == 1
