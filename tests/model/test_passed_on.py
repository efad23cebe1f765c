"""What generate() passes on to forward, against what it was given."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from conftest import tiny_llama
from probing import case, finding

from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject


def generated(change: str, made: Any) -> Any:
    """The finding of `generate` on a small model with one method of it replaced."""
    model = tiny_llama()
    setattr(model, change, made(getattr(model, change)))
    return finding(Subject.of(model, "llama", dtype="float64"), "generate")


def _tiled(usual: Any) -> Any:
    def expand(expand_size: int = 1, **named: Any) -> Any:
        mask_BT = named["attention_mask"]
        ids_BT, rest = usual(expand_size=expand_size, **named)
        return ids_BT, {**rest, "attention_mask": mask_BT.repeat(expand_size, 1)}

    return expand


def _from_ids(usual: Any) -> Any:
    @functools.wraps(usual)
    def prepare(input_ids: Any, **named: Any) -> Any:
        return usual(input_ids, **{**named, "attention_mask": torch.ones_like(input_ids)})

    return prepare


@pytest.mark.parametrize(
    ("method", "made", "name", "how"),
    [
        (
            "_expand_inputs_for_generation",
            _tiled,
            "beam search scores",
            "row 1; generate() passes on another `attention_mask`: "
            "0 at position 0 of row 1 instead of 1",
        ),
        (
            "prepare_inputs_for_generation",
            _from_ids,
            "a hole in the mask",
            "the mask hides positions 8..9; generate() passes on another `attention_mask`: "
            "1 at position 8 of row 0 instead of 0",
        ),
    ],
)
def test_another_mask_is_said_with_the_method_that_makes_it(
    method: str, made: Any, name: str, how: str
) -> None:
    found = generated(method, made)
    failing = case(found, name)
    assert found.verdict is Verdict.FAIL
    assert failing.note == how
    assert failing.cause.module == f"LlamaForCausalLM.{method}"


def test_ids_that_a_cache_holds_already_are_not_said_to_be_changed() -> None:
    model = tiny_llama()
    attention = model.model.layers[0].self_attn
    usual = attention.forward

    def forward(hidden_states: Any, **named: Any) -> Any:
        steps = hidden_states.shape[1] == 1
        output, *rest = usual(hidden_states, **named)
        return (1.1 * output if steps else output, *rest)

    attention.forward = forward
    found = finding(Subject.of(model, "llama", dtype="float64"), "generate")
    assert found.verdict is Verdict.FAIL
    assert not any("passes on" in each.note for each in found.cases)
