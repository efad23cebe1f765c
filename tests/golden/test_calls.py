"""What is recorded: the ways, the borders, the precisions, and calls that go to JSON and back."""

from __future__ import annotations

import json

import torch
import transformers
from conftest import SMALL, tiny_llama

from attncheck.core.settings import Settings
from attncheck.golden.calls import GoldenCall, planned
from attncheck.model.subject import Subject
from attncheck.targets.load import load


def test_every_way_crosses_the_window_in_every_precision() -> None:
    subject = load("builtin:window", Settings())
    calls = planned(subject)
    assert {call.way for call in calls if call.dtype == "float64"} == {
        "one forward",
        "batch of two",
        "in chunks on a cache",
        "token by token",
        "left-padded batch",
        "right-padded batch",
        "left-padded batch on a cache",
        "packed documents",
        "long row",
        "generate",
        "generate behind left padding",
    }
    (window,) = [each.length for each in subject.inputs.boundaries if each.kind == "window"]
    stepped = [call for call in calls if call.way == "token by token"]
    assert {call.dtype for call in stepped} == {"float64", "float32", "bfloat16"}
    assert all({window - 1, window, window + 1} <= set(call.spec.cuts) for call in stepped)
    assert all(call.spec.length > 2 * window for call in calls if not call.new_tokens)


def test_a_border_beyond_the_usual_row_is_passed_where_that_is_affordable() -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SMALL, sliding_window=300)
    subject = Subject.of(transformers.MistralForCausalLM(config), dtype="float32")
    calls = {call.name: call for call in planned(subject)}
    assert calls["past the window (300), one forward, float32"].spec.length == 308
    assert 300 in calls["past the window (300), token by token, float32"].spec.cuts


def test_a_call_comes_back_from_json() -> None:
    for call in planned(Subject.of(tiny_llama(), dtype="float32")):
        assert GoldenCall.from_json(json.loads(json.dumps(call.to_json()))) == call
