"""A rotation that is right at first and wrong further on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from probing import loaded

from attncheck.core.measurement import Comparison
from attncheck.core.verdict import Verdict
from attncheck.judge.heads import projection_cases
from attncheck.model.subject import Subject


def judged(subject: Subject) -> Comparison:
    """The case of all rotations on a row of 300 tokens."""
    with subject.at("float64") as view:
        row = view.inputs.fresh(300, salt=3)
        long = view.with_inputs(replace(view.inputs, row=row))
        case = next(projection_cases(long))
    assert isinstance(case, Comparison)
    return case


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda p: p.to(torch.bfloat16),
            "positions are rounded to bfloat16: wrong from position 257 on",
        ),
        (lambda p: p.clamp(max=99), "right up to position 99 and wrong from position 100 on"),
    ],
)
def test_positions_that_are_wrong_only_later_are_said_so(change: Any, words: str) -> None:
    subject = loaded("builtin:gqa")
    rotary = subject.model.model.rotary_emb
    real = rotary.forward
    rotary.forward = lambda x, position_ids: real(x, change(position_ids))
    case = judged(subject)
    assert case.broken is Verdict.FAIL
    assert words in case.note


def test_a_healthy_rotation_is_right_to_the_end() -> None:
    assert judged(loaded("builtin:gqa")).note == ""
