"""Borders behind the main row are said, and crossed on a kept cache: a fault behind one is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from conftest import SMALL
from probing import finding

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model import reach
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import wrap_forward
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify

WINDOW = 200
SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}


def mistral(*, wanted: bool | None = True, **changes: Any) -> Subject:
    sizes = {**SMALL, "sliding_window": WINDOW, "max_position_embeddings": 512, **changes}
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes))
    amplify(model, 0)
    return Subject.of(model, "far", settings=Settings(reach=wanted), dtype="float32")


def crossed(subject: Subject) -> dict[str, Verdict]:
    found = finding(subject, "decode-paths")
    return {each.name: verdict_of(each) for each in found.cases if str(WINDOW) in each.name}


NAMES = [
    "the window (200) crossed in steps",
    "the window (200) crossed in a chunk",
    "keys read behind the window (200)",
]


def test_a_healthy_model_crosses_its_window() -> None:
    subject = mistral()
    assert [str(each) for each in reach.borders(subject)] == ["window (200)"]
    assert crossed(subject) == dict.fromkeys(NAMES, Verdict.PASS)


def test_nothing_is_crossed_unasked_on_a_cpu() -> None:
    assert crossed(mistral(wanted=None)) == {}
    assert crossed(mistral(wanted=False)) == {}


def test_the_first_lines_say_what_is_not_reached_and_what_it_costs() -> None:
    (line,) = reach.in_words(mistral(wanted=None))
    assert line.startswith("input (24 tokens) is shorter than the window (200); --reach crosses it")
    (line,) = reach.in_words(mistral())
    assert "; is crossed " in line


def test_a_rotary_switch_is_crossed_as_well() -> None:
    subject = mistral(sliding_window=None, rope_parameters={"rope_theta": 10000.0, **SCALED})
    assert crossed(subject) == {
        "the rope switch (200) crossed in steps": Verdict.PASS,
        "the rope switch (200) crossed in a chunk": Verdict.PASS,
        "keys read behind the rope switch (200)": Verdict.PASS,
    }


def test_a_window_that_a_layer_forgets_is_found() -> None:
    subject = mistral()
    for layer in subject.model.model.layers:
        usual = layer.self_attn.forward

        def forward(*args: Any, usual: Any = usual, **named: Any) -> Any:
            named["attention_mask"] = None
            return usual(*args, **named)

        if layer.self_attn.layer_idx == 1:
            layer.self_attn.forward = forward
    assert Verdict.FAIL in crossed(subject).values()


def _behind(call: dict[str, Any]) -> dict[str, Any]:
    """Positions restart once the cache holds more than the window."""
    before = max(cached_length(call.get(name)) for name in CACHE_NAMES)
    if before < WINDOW:
        return call
    return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}


def test_positions_that_restart_behind_the_window_are_found() -> None:
    subject = mistral()
    wrap_forward(subject.model, _behind)
    found = crossed(subject)
    assert found["the window (200) crossed in steps"] is Verdict.FAIL
    usual = finding(mistral(wanted=False), "decode-paths")
    assert isinstance(usual, Finding)
    assert usual.verdict is Verdict.PASS


@pytest.mark.parametrize("changes", [{"max_position_embeddings": 128}])
def test_a_border_behind_the_context_is_none(changes: dict[str, Any]) -> None:
    subject = mistral(**changes)
    assert reach.borders(subject) == ()
    assert crossed(subject) == {}


def test_the_cost_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed first and what is decided later would differ otherwise."""
    subject = mistral(wanted=None)
    first = reach.seconds(subject)
    monkeypatch.setattr(reach, "_timed", lambda subject: 1e9)
    assert first > 0.0
    assert reach.seconds(subject) == first
