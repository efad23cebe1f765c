"""Heads that are rotated otherwise than the other heads of their layer."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from conftest import tiny_llama

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.judge.heads import projection_cases
from attncheck.model.subject import Subject
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(tiny_llama(num_hidden_layers=3), "llama", dtype="float64")


def _cases(subject: Subject, fault: str) -> dict[str, Measurement]:
    with Injector(sites_of(subject), parse(fault)).injected():
        return {each.name: each for each in projection_cases(subject)}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("queries,how=angle:2,heads=3", "queries of head 3 are rotated 2 positions further than"),
        ("keys,how=angle:-0.25,heads=0", "keys of head 0 are rotated 0.25 positions less far than"),
        ("queries,how=base:1.1,heads=1", "queries of head 1 are not rotated as"),
    ],
)
def test_a_head_in_one_layer_is_named(subject: Subject, fault: str, words: str) -> None:
    cases = _cases(subject, f"what={fault},at=model.layers.1.self_attn")
    found = cases["rotation of each head of 1 layers"]
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == f"model.layers.1.self_attn: {words} those of the others"
    (part,) = found.cause.parts
    assert (part.how, part.layers, part.heads) == ("rotated", (1,), (int(fault[-1]),))
    # the other heads of the layer are judged as always
    assert verdict_of(cases["rotation of 3 layers, one forward"]) is Verdict.PASS


def test_a_head_that_the_config_rotates_is_wrong_in_every_layer_too(subject: Subject) -> None:
    found = _cases(subject, "what=keys,how=angle:1,heads=1")["rotation of each head of 3 layers"]
    assert (verdict_of(found), found.value) == (Verdict.FAIL, 3.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("layers", "verdict"), [((0, 1, 2), Verdict.PASS), ((1,), Verdict.FAIL)])
def test_heads_without_positions_may_be_meant_where_all_layers_have_them(
    layers: tuple[int, ...], verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    home: Any = sys.modules["transformers.models.llama.modeling_llama"]
    usual, calls = home.apply_rotary_pos_emb, iter(range(10**6))

    def partly(query: Any, key: Any, *rest: Any, **named: Any) -> Any:
        turned = usual(query, key, *rest, **named)
        if next(calls) % 3 not in layers:
            return turned
        return tuple(
            torch.cat([left[:, :1], right[:, 1:]], 1)
            for left, right in zip((query, key), turned, strict=True)
        )

    monkeypatch.setattr(home, "apply_rotary_pos_emb", partly)
    model = Subject.of(tiny_llama(num_hidden_layers=3), "llama", dtype="float64")
    cases = {each.name: each for each in projection_cases(model)}
    (found,) = (each for name, each in cases.items() if name.startswith("rotation of each head"))
    assert verdict_of(found) is verdict
