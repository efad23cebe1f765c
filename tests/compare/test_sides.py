"""The sides of a comparison: their settings, their precision, and weights before code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import tiny_llama

from attncheck.compare import sides
from attncheck.compare.naming import NamedFault
from attncheck.compare.record import record
from attncheck.compare.sides import changed, compare_sides, compare_subjects, seen_by_control
from attncheck.core.errors import TargetError, UsageError
from attncheck.core.settings import Settings
from attncheck.model.inputs import Inputs
from attncheck.model.subject import Subject
from attncheck.targets.load import load


def quiet(what: str) -> None:
    return None


def test_a_coarse_precision_is_decided_by_a_finer_one() -> None:
    base = Settings(dtype="bfloat16")
    same = compare_sides(
        "builtin:gqa", "builtin:gqa", base, replace(base, attn="eager"), quiet, True
    )
    assert (same.comparison.verdict, same.verdict) == ("undecided", "rounding")
    other = compare_sides("builtin:gqa", "builtin:broken-positions", base, base, quiet)
    assert other.verdict == "different"


def test_changed_weights_are_named_before_any_code(saved: Callable[..., Path]) -> None:
    folder = saved("plain")
    other = tiny_llama()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.add_(0.01)
    other.save_pretrained(folder.parent / "changed")
    found = compare_sides(
        str(folder), str(folder.parent / "changed"), Settings(), Settings(), quiet
    )
    assert found.comparison.weights == ("model.layers.1.mlp.up_proj.weight",)
    assert [each.kind for each in found.how] == ["rank"]
    assert found.verdict == "different"


def test_settings_of_a_side_are_checked() -> None:
    assert changed(Settings(), ["attn=eager,length=12", "dtype=float32"]) == Settings(
        attn="eager", length=12, dtype="float32"
    )
    for text, said in [
        ("attn", "expected NAME=VALUE"),
        ("atn=eager", "did you mean `attn`"),
        ("length=x", "expected a whole number"),
        ("dtype=float12", "did you mean `float32`"),
    ]:
        with pytest.raises(UsageError, match=said):
            changed(Settings(), [text])


def test_a_vocabulary_that_lacks_the_tokens_is_said(saved: Callable[..., Path]) -> None:
    small = load(str(saved("small", vocab_size=32)), Settings())
    with pytest.raises(TargetError, match="outside its vocabulary of 32"):
        record(small, ((3, 40, 5),))


def test_models_of_two_vocabularies_are_compared_on_what_both_have() -> None:
    one, other = tiny_llama(), tiny_llama()
    with torch.no_grad():
        other.resize_token_embeddings(one.config.vocab_size + 8)
    found = compare_subjects(Subject.of(one, "one"), Subject.of(other, "padded"), quick=True)
    assert found.verdict == "identical"


def test_what_differs_in_further_calls_alone_is_looked_for_in_those_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [
        SimpleNamespace(held=held, call=SimpleNamespace(way=way))
        for held, way in [("rounding", "full"), ("different", "steps"), ("skipped", "compiled")]
    ]
    further = SimpleNamespace(word="DIFFERENT", calls=calls)
    asked: list[list[str]] = []

    def named(one: Any, other: Any, ways: list[str]) -> tuple[NamedFault, ...]:
        asked.append(ways)
        return ()

    monkeypatch.setattr(sides, "further_calls", lambda one, other: further)
    fault = NamedFault(name="n", sentence="s", module="", other_module="", layer=None)
    monkeypatch.setattr(sides, "fault_of", lambda answer: fault)
    monkeypatch.setattr(sides, "own_faults", named)
    model = tiny_llama()
    found = compare_subjects(Subject.of(model, "one"), Subject.of(model, "other"))
    assert asked == [["steps"]]
    assert found.verdict == "different"


def test_a_model_without_a_place_for_a_fault_gets_another_token_in_the_middle_of_its_first_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: list[tuple[Any, ...]] = []
    really = Inputs.other

    def spied(self: Inputs, *arguments: Any) -> Any:
        changes.append(arguments)
        return really(self, *arguments)

    monkeypatch.setattr(sides, "CONTROLS", ())
    monkeypatch.setattr(Inputs, "other", spied)
    one = Subject.of(tiny_llama(), "one")
    rows = (tuple(range(3, 12)), tuple(range(20, 25)))
    control = seen_by_control(one, one, rows)
    assert changes == [(rows[0], 4, 5)]
    assert (control.fault, control.detected) == ("another-token", True)
