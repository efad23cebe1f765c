"""load: a checkpoint that the config does not fit, and numbers that are lost, fail; a healthy model
has no finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from probing import finding

from attncheck.core.finding import Diagnosis
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.subject import Subject
from attncheck.run.implicit import implicit_findings
from attncheck.targets.load import load

Save = Callable[..., Path]


def test_a_checkpoint_that_fits_its_config_has_no_finding(saved: Save) -> None:
    assert implicit_findings(load(str(saved()), Settings())) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_key_value_heads": 4},
            "weights whose shape differs from the config: model.layers.0.self_attn.k_proj.weight",
        ),
        (
            {"num_hidden_layers": 3},
            "weights missing from the checkpoint and newly initialised: model.layers.2",
        ),
        (
            {"num_hidden_layers": 1},
            "weights in the checkpoint that the model has no place for: model.layers.1",
        ),
    ],
)
def test_a_config_that_does_not_fit_the_checkpoint_fails_the_load(
    saved: Save, change: dict[str, int], words: str
) -> None:
    folder = saved()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    findings = implicit_findings(load(str(folder), Settings()))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL]
    assert words in findings[0].summary


def test_each_missing_weight_is_counted_once(saved: Save) -> None:
    folder = saved()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    (finding,) = implicit_findings(load(str(folder), Settings()))
    missing = finding.cases[0]
    assert (missing.name, missing.value, missing.limit) == ("missing keys", 9.0, 0.0)  # type: ignore[attr-defined]


def test_a_lost_weight_is_named_with_its_index(llama: Any) -> None:
    llama.model.layers[1].mlp.up_proj.weight.data[4, 17] = torch.nan
    (finding,) = implicit_findings(Subject.of(llama, dtype="float64"))
    assert finding.verdict is Verdict.FAIL
    assert [case.name for case in finding.cases] == [
        "finite weights",
        "finite activations in float32",
        "finite activations in float64",
    ]
    assert finding.cases[0].note == (
        "model.layers.1.mlp.up_proj.weight holds a value that is not finite, the first nan at "
        "[4, 17]"
    )
    assert finding.cases[1].note.startswith(
        "`model.layers.1.mlp.up_proj` returns 24 values that are not finite, the first nan at "
        "[0, 0, 4] in float32; the largest value before it is "
    )
    assert finding.location is not None
    assert (finding.location.module, finding.location.layer) == ("model.layers.1.mlp.up_proj", 1)


def test_a_lost_weight_that_no_token_reads_is_found(llama: Any) -> None:
    llama.model.embed_tokens.weight.data[63, 5] = -torch.inf
    subject = Subject.of(llama)
    unread = replace(subject.inputs, row=tuple(token % 60 for token in subject.inputs.row))
    (finding,) = implicit_findings(subject.with_inputs(unread))
    assert [case.note for case in finding.cases] == [
        "model.embed_tokens.weight holds a value that is not finite, the first -inf at [63, 5]"
    ]


def test_an_overflow_in_the_stored_precision_is_found_before_any_cast(llama: Any) -> None:
    llama.model.layers[0].mlp.down_proj.weight.data *= 1e5
    healthy = Subject.of(llama, dtype="float64")
    assert implicit_findings(healthy) == []
    (finding,) = implicit_findings(Subject.of(llama.float().half()).cast("float64"))
    (case,) = finding.cases
    assert case.name == "finite activations in float16"
    assert "`model.layers.0.mlp" in case.note
    assert "float16 ends at 6.55e+04" in case.note


def test_infinities_that_are_masks_and_switches_are_healthy(llama: Any) -> None:
    mask = torch.full((4, 4), -torch.inf).triu(1)
    llama.model.register_buffer("mask", mask)
    llama.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.full((4,), -torch.inf))
    assert implicit_findings(Subject.of(llama)) == []


def test_a_failure_on_lost_numbers_is_no_fault_of_attention(llama: Any) -> None:
    llama.model.layers[1].mlp.up_proj.weight.data[4, 17] = torch.nan
    found = diagnose(Subject.of(llama), finding(Subject.of(llama), "future-token"))
    assert (found.verdict, found.diagnosis) == (
        Verdict.FAIL,
        Diagnosis(
            fault="weights-not-finite",
            how="reproduced",
            residual=0.0,
            advice="model.layers.1.mlp.up_proj.weight holds a value that is not finite, the first "
            "nan at [4, 17]. Load or train these weights again: no call and no precision can mend "
            "a number that is lost.",
        ),
    )


def test_an_overflow_is_no_fault_of_attention(llama: Any) -> None:
    def lose(module: Any, given: Any, output: torch.Tensor) -> torch.Tensor:
        return output.index_fill(1, torch.tensor([3]), torch.inf)

    llama.model.layers[1].mlp.register_forward_hook(lose)
    subject = Subject.of(llama)
    found = diagnose(subject, finding(subject, "future-token"))
    assert found.diagnosis is not None
    assert found.location is not None
    assert (found.diagnosis.fault, found.location.module) == ("overflow", "model.layers.1.mlp")
    assert (
        "`model.layers.1.mlp` returns 32 values that are not finite, the first inf at [0, 3, 0]"
        in (found.diagnosis.advice)
    )
