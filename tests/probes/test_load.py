"""load: a checkpoint that the config does not fit fails, and a healthy one has no finding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
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
