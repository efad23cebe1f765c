"""A constant over some logits neither sets the budget of the others nor hides what happens there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from conftest import SMALL
from probing import finding

from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.numerics.constants import without_constants
from attncheck.targets.amplify import amplify

HELD = {
    "the smallest number": lambda logits: logits.masked_fill(
        COLUMNS, torch.finfo(logits.dtype).min
    ),
    "-1e9": lambda logits: torch.where(COLUMNS, logits - 1e9, logits),
    "minus infinity": lambda logits: logits.masked_fill(COLUMNS, -math.inf),
    "nothing": lambda logits: logits,
}
COLUMNS = torch.arange(SMALL["vocab_size"]) >= 50


class Held(transformers.LlamaForCausalLM):
    """A Llama that holds some tokens down, and may let its last token leak into the first logit."""

    how, leak = "nothing", 0.0

    def forward(self, *args: Any, **named: Any) -> Any:
        """The usual forward, with other logits."""
        output = super().forward(*args, **named)
        logits_BTV = output.logits.clone()
        logits_BTV[..., 0] += self.leak * logits_BTV[:, -1:, 1]
        output.logits = HELD[self.how](logits_BTV)
        return output


def held(how: str, leak: float = 0.0) -> Any:
    torch.manual_seed(0)
    model = Held(transformers.LlamaConfig(**SMALL))
    amplify(model, 0)
    model.how, model.leak = how, leak
    return model


@pytest.mark.parametrize("how", HELD)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_that_holds_tokens_down_is_not_accused(how: str, dtype: str) -> None:
    subject = Subject.of(held(how), dtype=dtype)
    for probe in ("future-token", "decode-paths", "generate"):
        assert finding(subject, probe).verdict is Verdict.PASS


@pytest.mark.parametrize("how", HELD)
def test_a_small_leak_shows_beside_them(how: str) -> None:
    subject = Subject.of(held(how, leak=1e-8), dtype="float64")
    assert subject.budget.value < 1e-11
    assert finding(subject, "future-token").verdict is Verdict.FAIL


def test_equal_constants_stay_equal_and_others_differ() -> None:
    logits_BTV = torch.randn(1, 4, 8, dtype=torch.float64)
    logits_BTV[..., 6], logits_BTV[..., 7] = -1e9, -math.inf
    settled_BTV = without_constants(logits_BTV)
    assert torch.equal(settled_BTV[..., :6], logits_BTV[..., :6])
    assert len(settled_BTV[..., 6].unique()) == len(settled_BTV[..., 7].unique()) == 1
    logits_BTV[0, 2, 6] *= 1.001
    assert abs(float(without_constants(logits_BTV)[0, 2, 6] - settled_BTV[0, 2, 6])) > 1e-11


def test_lost_numbers_are_still_lost() -> None:
    for value, where in ((math.nan, 0), (math.inf, 0), (-math.inf, slice(None))):
        logits_BTV = torch.randn(1, 4, 8)
        logits_BTV[0, 1, where] = value
        assert not bool(torch.isfinite(without_constants(logits_BTV)).all())


def test_logits_without_constants_are_left_alone() -> None:
    logits_BTV = torch.randn(1, 4, 8) * torch.logspace(-2, 3, 8)
    assert without_constants(logits_BTV) is logits_BTV
    assert without_constants(logits_BTV[:, :0]).numel() == 0
