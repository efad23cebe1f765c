"""adapter: the adapted model, the merged one and the base are told apart, and nothing of it stays
behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from probing import saved_adapter as written

import attncheck
from attncheck.core import registry
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.run.implicit import implicit_findings
from attncheck.targets.adapters import adapted_layers
from attncheck.targets.load import load

peft = pytest.importorskip("peft", reason="PEFT is not installed")
SHORT = Settings(length=12)


def verdicts(subject: Subject) -> dict[str, Verdict]:
    return {case.name: verdict_of(case) for case in registry.load("adapter").measure(subject)}


def test_an_adapter_keeps_its_promises(tmp_path: Path) -> None:
    subject = load(str(written(tmp_path)), SHORT)
    assert type(subject.model).__name__ == "LlamaForCausalLM"
    assert len(adapted_layers(subject.model)) == 4
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    assert verdicts(subject) == dict.fromkeys(
        ("adapter vs base", "adapter switched off vs base", "merged vs adapter"), Verdict.PASS
    )
    assert all(
        torch.equal(value, before[name]) for name, value in subject.model.state_dict().items()
    )


def test_an_adapter_that_changes_nothing_is_a_warning(tmp_path: Path) -> None:
    subject = load(str(written(tmp_path, trained=False)), SHORT)
    assert verdicts(subject)["adapter vs base"] is Verdict.WARN


def test_a_merge_that_scales_otherwise_fails(tmp_path: Path) -> None:
    subject = load(str(written(tmp_path)), SHORT)
    layer: Any = adapted_layers(subject.model)["model.layers.1.self_attn.v_proj"]
    usual = layer.get_delta_weight
    layer.get_delta_weight = lambda adapter: 1.01 * usual(adapter)
    found = verdicts(subject)
    assert found["merged vs adapter"] is Verdict.FAIL
    assert found["adapter switched off vs base"] is Verdict.PASS


def test_an_adapter_that_is_not_switched_off_fails(tmp_path: Path) -> None:
    subject = load(str(written(tmp_path)), SHORT)
    layer: Any = adapted_layers(subject.model)["model.layers.0.self_attn.q_proj"]
    layer.enable_adapters = lambda on: None
    assert verdicts(subject)["adapter switched off vs base"] is Verdict.FAIL


def test_a_model_inside_of_peft_is_checked_like_any_other(tmp_path: Path) -> None:
    folder = written(tmp_path)
    wrapped = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), folder
    )
    report = attncheck.check(wrapped, probes=["position-reset"], length=12)
    assert [(result.probe, result.verdict) for result in report.targets[0].results] == [
        ("adapter", Verdict.PASS),
        ("position-reset", Verdict.PASS),
    ]


def test_a_model_without_an_adapter_has_no_such_finding() -> None:
    assert implicit_findings(load("builtin:gqa", SHORT)) == []
