"""The calls on a cache in which layers are judged."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from probing import loaded

from attncheck.judge import layer_results
from attncheck.judge.layer_results import LayerResults, schedule
from attncheck.model.subject import Subject


def test_a_prefill_a_chunk_and_a_step_are_the_whole_row(subject: Subject) -> None:
    first, chunk, step = schedule(subject)
    assert (first + chunk + step, step) == (subject.inputs.length, 1)
    assert first != chunk


def test_without_a_cache_there_is_no_chunk() -> None:
    plain = loaded("config:openai-gpt")
    assert schedule(plain) == (plain.inputs.length - 1, 1)


@dataclass(frozen=True)
class Layer:
    """What is read of a layer that only other keys explain."""

    name: str
    unknown: str = ""
    other_keys: bool = True


def test_a_layer_that_chooses_keys_by_content_is_set_aside_whatever_was_known_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layer_results, "exemption", lambda each, others: f"{each.name} chooses")
    layers: Any = [Layer("a"), Layer("b", unknown="no scale"), Layer("c", other_keys=False)]
    unexpected: Any = [SimpleNamespace(name=name) for name in "abc"]
    found = LayerResults(layers=layers, unexpected=unexpected)
    layer_results._exempt(found, [])
    assert [each.unknown for each in found.layers] == ["a chooses", "no scale", ""]
