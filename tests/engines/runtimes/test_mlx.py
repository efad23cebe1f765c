"""mlx-lm against transformers: run by `make test-engines`, which installs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_servers import tiny
from typer.testing import CliRunner

from attncheck.cli.app import app
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.engines.examination import compared_in_engine, examined_in_engine
from attncheck.engines.tiny import add_old_keys

pytest.importorskip("mlx_lm")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tiny().save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_folder_of_transformers_5_is_read_with_another_base_and_that_is_named(
    folder: str,
) -> None:
    result = CliRunner().invoke(app, ["compare", folder, f"mlx:{folder}", "--no-progress"])
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "FAIL engine-weights" in text
    assert "reproduced: rope-base" in text
    assert "Rope_theta 10000 where the config says 3217. The engine does not read" in text


def test_the_same_folder_with_the_old_keys_passes(folder: str) -> None:
    assert add_old_keys(folder)
    finding = compared_in_engine(folder, f"mlx:{folder}", Settings(), lambda what: None)[1]
    assert finding.verdict is Verdict.PASS
    assert [each.detected for each in finding.controls] == [True]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("llama", "rope-base"),
        ("glm", "rope-base and rope-share"),
        ("starcoder2", "activation and rope-base"),
        ("mistral", "rope-base and window-ignored"),
    ],
)
def test_known_divergences_of_tiny_models_are_named(name: str, fault: str) -> None:
    with examined_in_engine(f"config:{name}", Settings(engine="mlx")) as examination:
        finding = next(examination.findings())
    assert finding.verdict is Verdict.FAIL
    assert finding.diagnosis is not None
    assert (finding.diagnosis.fault, finding.diagnosis.how) == (fault, "reproduced")


@pytest.mark.parametrize("name", ["stablelm", "granite"])
def test_healthy_types_pass(name: str) -> None:
    with examined_in_engine(f"config:{name}", Settings(engine="mlx")) as examination:
        found = list(examination.findings())
    assert {each.verdict for each in found} <= {Verdict.PASS, Verdict.SKIP}
    assert all(control.detected for each in found for control in each.controls)


def test_a_type_that_mlx_does_not_know_is_skipped() -> None:
    result = CliRunner().invoke(
        app, ["run", "config:bloom", "--engine", "mlx", "-v", "--no-progress"]
    )
    assert result.exit_code == 5
    assert "Model type bloom not supported" in " ".join(result.output.split())
