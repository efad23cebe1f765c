"""position-reset: a constant shift of all positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from probing import case, finding, loaded
from torch import nn

from attncheck.core import registry
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject


def test_positions_that_are_rounded_far_into_the_context(double: Subject) -> None:
    rotary = double.model.model.rotary_emb
    usual = rotary.forward
    rotary.forward = lambda x, position_ids: usual(
        x, position_ids.to(torch.bfloat16).to(torch.float64)
    )
    found = finding(double, "position-reset")
    assert verdict_of(case(found, "all positions shifted")) is Verdict.PASS
    assert verdict_of(case(found, "all positions shifted far")) is Verdict.FAIL


def test_keys_of_an_encoder_that_have_no_position_make_a_shift_matter_by_design() -> None:
    subject = loaded("config:seq2seq/t5gemma2")
    shifted = next(
        case
        for case in registry.load("position-reset").measure(subject)
        if case.name == "all positions shifted"
    )
    assert shifted.expect == "figure"
    assert shifted.max_abs is not None
    assert shifted.max_abs > 0.1
    assert "some keys have no position" in shifted.note


def rotate_values(subject: Subject, width: int) -> None:
    """Rotate the first channel pair of every head's values by the token's position."""
    positions_BT: list[torch.Tensor] = []

    def before(module: nn.Module, args: Any, named: Any) -> None:
        row_BT = torch.arange(named["input_ids"].shape[1])[None]
        positions_BT[:] = [named.get("position_ids", row_BT)]

    def rotated(module: nn.Module, args: Any, output_BTW: torch.Tensor) -> torch.Tensor:
        heads_BTHD = output_BTW.unflatten(-1, (-1, width)).clone()
        first, second = heads_BTHD[..., 0].clone(), heads_BTHD[..., 1].clone()
        angles_BT1 = positions_BT[0].to(output_BTW.dtype)[..., None]
        heads_BTHD[..., 0] = first * angles_BT1.cos() - second * angles_BT1.sin()
        heads_BTHD[..., 1] = second * angles_BT1.cos() + first * angles_BT1.sin()
        return heads_BTHD.flatten(-2)

    subject.model.register_forward_pre_hook(before, with_kwargs=True)
    for name, module in subject.model.named_modules():
        if name.endswith("v_proj"):
            module.register_forward_hook(rotated)


@pytest.mark.parametrize(("target", "width"), [("builtin:gqa", 16), ("config:gptj", 16)])
def test_values_that_are_rotated_too_make_positions_absolute(target: str, width: int) -> None:
    """Also where the model computes attention inside, out of reach of the interface."""
    subject = loaded(target)
    rotate_values(subject, width)
    cases = {each.name: each for each in registry.load("position-reset").measure(subject)}
    assert verdict_of(cases["all positions shifted"]) is Verdict.FAIL


@pytest.mark.parametrize("target", ["config:gptj", "config:codegen", "config:falcon"])
def test_a_shift_is_judged_where_attention_is_computed_inside_the_model(target: str) -> None:
    cases = {each.name: each for each in registry.load("position-reset").measure(loaded(target))}
    shifted = cases["all positions shifted"]
    assert shifted.expect == "equal"
    assert verdict_of(shifted) is Verdict.PASS


def test_a_config_that_asks_for_rotated_values_is_believed() -> None:
    subject = loaded("builtin:gqa")
    rotate_values(subject, 16)
    subject.model.config.rotary_value = True
    cases = {each.name: each for each in registry.load("position-reset").measure(subject)}
    assert cases["all positions shifted"].expect == "figure"
    assert "values change with the position" in cases["all positions shifted"].note
