"""repeatability: dropout that stays on, tables that remember, weights that a forward changes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from conftest import tiny_llama
from healthy.trained import near_tied_routers
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.load import in_memory, settle_dtype


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "repeatability")
    assert found.verdict is Verdict.PASS
    assert found.controls
    assert all(control.detected for control in found.controls)
    assert case(found, "the same forward twice").note == "equal to the bit"


@pytest.mark.parametrize("fault", ["dropout-active", "rope-scale-switch"])
def test_planted_faults_are_caught(fault: str) -> None:
    broken = caught_by(loaded("builtin:gqa"), "repeatability", fault)
    assert broken is not None
    expected = (
        "the same forward twice" if fault == "dropout-active" else "12 tokens after 4 and after 24"
    )
    assert broken.name == expected


def test_dynamic_ntk_depends_on_what_ran_before() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    subject = Subject.of(
        tiny_llama(max_position_embeddings=16, rope_parameters=rope), "ntk", dtype="float64"
    )
    found = finding(subject, "repeatability")
    assert found.verdict is Verdict.FAIL
    assert found.summary.startswith("20 tokens after 6 and after 24: logits differ by ")


def test_a_forward_that_writes_its_weights_is_caught() -> None:
    model = tiny_llama()
    usual = model.forward

    @functools.wraps(usual)
    def forward(*args: Any, **named: Any) -> Any:
        with torch.no_grad():
            model.lm_head.weight += 1e-9
        return usual(*args, **named)

    model.forward = forward
    found = finding(Subject.of(model, "writes"), "repeatability")
    assert found.verdict is Verdict.FAIL
    assert case(found, "weights changed by a forward").value == 1.0
    assert case(found, "weights changed by a forward").note == "lm_head.weight"


def test_routers_that_draw_at_random_only_in_training_are_not_accused() -> None:
    found = finding(loaded("config:switch_transformers"), "repeatability")
    for what in ("twice", "after a training step", "after an exception", "after another dtype"):
        assert verdict_of(case(found, f"the same forward {what}")) is Verdict.PASS


def test_an_exception_leaves_a_model_whose_layers_are_not_called_as_modules() -> None:
    found = finding(loaded("config:masked/squeezebert"), "repeatability")
    assert verdict_of(case(found, "the same forward after an exception")) is Verdict.PASS


def test_a_budget_as_large_as_the_logits_does_not_hide_an_injected_fault() -> None:
    subject = settle_dtype(in_memory(near_tied_routers(), "tied", Settings()), "float32")
    assert not subject.resolves
    found = finding(subject, "repeatability")
    assert found.verdict is Verdict.PASS
    assert [each.detected for each in found.controls] == [True, True]


def test_short_rows_are_asked_after_shorter_ones() -> None:
    subject = settle_dtype(in_memory(tiny_llama(), "short", Settings(length=5)), "float32")
    found = finding(subject, "repeatability")
    assert "2 tokens after 1 and after 5" in [case.name for case in found.cases]


def test_embeddings_of_an_encoder_are_held_against_its_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RoBERTa counts positions from behind the padding index, for embeddings too."""
    name, subject = "inputs_embeds against ids", loaded("config:masked/roberta")
    assert verdict_of(case(finding(subject, "repeatability"), name)) is Verdict.PASS
    inner = next(each for each in subject.model.modules() if hasattr(each, "padding_idx"))
    monkeypatch.setattr(
        type(inner),
        "create_position_ids_from_inputs_embeds",
        lambda self, embeds, padding: torch.arange(embeds.shape[1]).expand(embeds.shape[:2]),
    )
    broken = Subject.of(subject.model, "roberta", dtype="float64")
    assert verdict_of(case(finding(broken, "repeatability"), name)) is Verdict.WARN
