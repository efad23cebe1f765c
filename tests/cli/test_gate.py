"""`record`, `gate` and `compare` with a recording: answers, exit codes, reports, one-line errors."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from attncheck.__main__ import main

ROOT = Path(__file__).parents[2]
FORGETFUL = ("4.57.6", "5.3.0")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("golden") / "golden.safetensors")
    assert main(["record", "builtin:gqa", "-o", path, "--no-progress"]) == 0
    return path


def test_the_same_model_passes(golden: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", golden, "builtin:gqa", "--no-progress"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("IDENTICAL  every logit of ")
    assert "1 of 4 heads lost in what enters model.layers.2.self_attn.o_proj: seen in" in said


def test_a_fault_fails_with_its_place_in_every_report(
    golden: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [f"--report={each}={tmp_path / each}.json" for each in ("json", "markdown", "junit")]
    assert main(["gate", golden, "builtin:broken-positions", "--no-progress", *reports]) == 1
    said = capsys.readouterr().out
    assert said.startswith("DIFFERENT  14 of 35 calls differ (only on a cache), first in model.")
    (target,) = json.loads((tmp_path / "json.json").read_text())["targets"]
    (result,) = target["results"]
    assert (result["probe"], result["verdict"]) == ("golden", "fail")
    assert result["summary"].startswith("DIFFERENT: 14 of 35 calls differ")
    assert result["location"]["module"] == "model.rotary_emb"
    assert "### ❌ attncheck gate: DIFFERENT" in (tmp_path / "markdown.json").read_text()
    assert 'failures="1"' in (tmp_path / "junit.json").read_text()
    assert main(["validate", str(tmp_path / "json.json")]) == 0


def test_compare_holds_a_model_against_a_recording(
    golden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "builtin:gqa", golden, "--no-progress"]) == 0
    assert "IDENTICAL" in capsys.readouterr().out
    assert main(["compare", golden, golden, "--no-progress"]) == 2
    assert "a recording is compared with a model" in capsys.readouterr().err


def test_a_run_holds_its_model_too(golden: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["--probe", "future-token", "--golden", golden, "--no-progress", "--format", "json"]
    assert main(["run", "builtin:gqa", *usual]) == 0
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert [each["probe"] for each in target["results"]][-2:] == ["future-token", "golden"]
    assert target["results"][-1]["summary"].startswith("IDENTICAL: ")
    assert main(["run", "builtin:mha", *usual]) == 2
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert "not the model that was recorded" in target["error"]


def test_what_cannot_be_held_is_one_line(
    golden: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.safetensors").write_text("nothing")
    for arguments, words in [
        ([str(tmp_path / "none.safetensors"), "builtin:gqa"], "no such file"),
        ([str(tmp_path / "text.safetensors"), "builtin:gqa"], "damaged, or no recording"),
        ([golden, "builtin:mha"], "not the model that was recorded"),
        ([golden, "builtin:gqx"], "did you mean"),
    ]:
        assert main(["gate", *arguments, "--no-progress"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line


def test_an_upgrade_is_recorded_under_one_release_and_held_under_another(tmp_path: Path) -> None:
    """The scale flags of GPT-2 were ignored by sdpa attention up to 5.3.0: layer 1 is the first
    whose number is not 1.
    """
    pythons = sorted(ROOT.glob(".venvs/*/bin/python"))
    old = next((each for each in pythons if _release(each) in FORGETFUL), None)
    if old is None:
        pytest.skip(f"no environment in .venvs with transformers {' or '.join(FORGETFUL)}")
    target = f"{ROOT}/tests/triage/reported_models.py:scaled_by_layer"
    path = str(tmp_path / "golden.safetensors")
    assert main(["record", target, "-o", path, "--no-progress"]) == 0
    ran = subprocess.run(
        [str(old), "-m", "attncheck", "gate", path, target, "--no-progress"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/probes"},
    )
    assert ran.returncode == 1, ran.stderr
    assert "first in transformer.h.1.attn" in ran.stdout
    assert "weights that are not the same" not in ran.stdout


def _release(python: Path) -> str:
    found = next(
        python.parent.parent.glob("lib/python*/site-packages/transformers-*.dist-info"), None
    )
    return found.name.removeprefix("transformers-").removesuffix(".dist-info") if found else ""
