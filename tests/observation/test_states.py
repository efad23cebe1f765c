"""States that a layer finds are not those that it left: how they differ, and the proof by putting
them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from probing import finding, loaded
from torch import Tensor

from attncheck.core.finding import Diagnosis
from attncheck.diagnosis.diagnose import diagnose
from attncheck.faults.engine.store_edits import at_cache
from attncheck.model.caches import states
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.observation.states import coarse_states


@contextmanager
def edited(subject: Subject, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The states of one layer change before every call on a filled cache."""

    def edit(cache: Any) -> None:
        for each in states(cache):
            if each.layer == layer:
                each.tensor.copy_(change(each.tensor))

    with at_cache(subject, edit), subject.passes.under("edited", True):
        yield


def explained(probe: str, change: Callable[[Tensor], Tensor]) -> Diagnosis:
    subject = loaded("config:mamba2")
    with edited(subject, 1, change):
        found = diagnose(subject, finding(subject, probe))
    assert found.diagnosis is not None
    assert found.location is not None
    assert found.location.layer == 1
    return found.diagnosis


@pytest.mark.parametrize(
    ("probe", "change", "how"),
    [
        ("decode-paths", lambda state: state * 0.5, "scaled"),
        ("batch-rows", lambda state: state.roll(1, 0), "other sequence"),
    ],
)
def test_a_changed_state_is_measured(
    probe: str, change: Callable[[Tensor], Tensor], how: str
) -> None:
    found = explained(probe, change)
    assert found.how in ("measured", "reproduced")
    assert {(part.what, part.how) for part in found.parts} == {("state", how)}
    assert all(part.layers == (1,) for part in found.parts)
    assert "With what each layer left in the cache put back, the logits are right to" in (
        found.sentence
    )


def test_states_that_a_layer_itself_rounds_are_said_beside_what_they_change() -> None:
    subject = loaded("config:mamba2")
    mixer = subject.model.backbone.layers[1].mixer

    def rounding(module: Any, args: Any, named: Any, output: Any) -> None:
        cache = next(each for each in (*args, *named.values()) if hasattr(each, "layers"))
        for each in states(cache):
            if each.layer == 1:
                each.tensor.copy_(each.tensor.bfloat16())

    with mixer.register_forward_hook(rounding, with_kwargs=True):
        found = coarse_states(subject.model, lambda: subject.passes.replay(stepped(subject)))
    assert {(each.layer, each.dtype) for each in found} == {(1, "bfloat16")}
    assert not coarse_states(subject.model, lambda: subject.passes.replay(stepped(subject)))


def stepped(subject: Subject) -> ForwardSpec:
    return ForwardSpec(subject.inputs.tokens, chunks=(subject.inputs.length - 1, 1))
