"""The sides of a comparison: their settings, their precision, and weights before code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import tiny_llama

from attncheck.compare.record import record
from attncheck.compare.sides import changed, compare_sides, compare_subjects
from attncheck.core.errors import TargetError, UsageError
from attncheck.core.settings import Settings
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
