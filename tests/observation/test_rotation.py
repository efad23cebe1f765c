"""A layer's rotation is measured along a row of one token, with float32 tables and without
positions as well.
"""

from __future__ import annotations

import pytest
import torch
from probing import finding, loaded

from attncheck.diagnosis.diagnose import diagnose
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec
from attncheck.observation.rotation import measured_rotations
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of


@pytest.mark.parametrize(
    ("target", "speeds"),
    [
        ("builtin:gqa", 10000.0 ** (-torch.arange(8) / 8)),
        ("config:codegen", 10000.0 ** (-torch.arange(4) / 4)),
        ("config:falcon", 10000.0 ** (-torch.arange(8) / 8)),
    ],
)
def test_every_layer_has_the_speeds_of_its_table(target: str, speeds: torch.Tensor) -> None:
    subject = loaded(target)
    found = measured_rotations(Trusted(subject), ForwardSpec(subject.inputs.tokens))
    assert len(found) == subject.facts.layers
    for rotation in found.values():
        measured_P = rotation.speed_P[: len(speeds)].abs().float()
        assert torch.allclose(measured_P, speeds, atol=1e-5)
        assert torch.allclose(rotation.speed_P[len(speeds) :].abs().float(), torch.zeros(1))


def test_a_model_that_does_not_rotate_has_no_rotation() -> None:
    subject = loaded("config:gpt2")
    assert measured_rotations(Trusted(subject), ForwardSpec(subject.inputs.tokens)) == {}


def test_keys_that_a_step_rotates_with_another_base_are_said_to_be() -> None:
    subject = loaded("builtin:gqa")
    fault = parse("what=keys,how=base:10,at=model.layers.1.self_attn,when=step")
    with Injector(sites_of(subject), fault).injected():
        found = diagnose(subject, finding(subject, "decode-paths")).diagnosis
    assert found is not None
    assert found.how == "measured"
    assert "rotated with base 100000, in layer 1" in found.sentence
    assert found.family == "rope-scale-switch"
