"""position-reset: a constant shift of all positions."""

from __future__ import annotations

import torch
from probing import case, finding, loaded

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
