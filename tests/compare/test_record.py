"""A recording holds everything, reads back, and compares with another release."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.compare.divergence import compare
from attncheck.compare.record import load as load_recording
from attncheck.compare.record import record, save
from attncheck.core.errors import TargetError
from attncheck.model.subject import Subject

ROOT = Path(__file__).parents[2]


def test_a_trace_holds_everything_and_reads_back(subject: Subject, tmp_path: Path) -> None:
    recording = record(subject)
    save(recording, tmp_path / "t.safetensors")
    back = load_recording(tmp_path / "t.safetensors")
    assert (back.rows, back.dtype, back.pad, back.meta) == (
        recording.rows,
        "float64",
        recording.pad,
        recording.meta,
    )
    assert compare(recording, back).verdict == "identical"
    assert list(back.forwards[0].outputs) == list(recording.forwards[0].outputs)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(TargetError, match="not a recording"):
        load_recording(path)
    with pytest.raises(TargetError, match="no such file"):
        load_recording(tmp_path / "y.safetensors")


def test_record_and_compare_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "t.safetensors")
    assert main(["record", "builtin:gqa", "-o", path, "--no-progress"]) == 0
    assert main(["compare", path, "builtin:gqa", "--no-progress"]) == 0
    assert main(["compare", path, "builtin:broken-positions", "--no-progress"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "IDENTICAL every logit is the same to the last bit" in said
    assert "All 39 weights are the same" in said
    assert "First diverging module: model.rotary_emb from position 8 on" in said


def test_an_upgrade_is_recorded_under_one_release_and_compared_under_another(
    tmp_path: Path,
) -> None:
    """The scale flags of GPT-2 were ignored by sdpa attention up to 5.3.0: layer 1 is the first
    whose number is not 1.
    """
    old = next(
        (
            python
            for python in sorted(ROOT.glob(".venvs/*/bin/python"))
            if _release(python) in FORGETFUL
        ),
        None,
    )
    if old is None:
        pytest.skip(f"no environment in .venvs with transformers {' or '.join(FORGETFUL)}")
    target, path = (
        f"{ROOT}/tests/triage/reported_models.py:scaled_by_layer",
        str(tmp_path / "t.safetensors"),
    )
    assert main(["record", target, "-o", path, "--no-progress"]) == 0
    ran = subprocess.run(
        [str(old), "-m", "attncheck", "compare", path, target, "--no-progress"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/probes"},
    )
    assert ran.returncode == 1, ran.stderr
    said = " ".join(ran.stdout.split())
    assert "All 52 weights are the same" in said
    assert "First diverging module: transformer.h.1.attn" in said


FORGETFUL = ("4.57.6", "5.3.0")


def _release(python: Path) -> str:
    found = next(
        python.parent.parent.glob("lib/python*/site-packages/transformers-*.dist-info"), None
    )
    return found.name.removeprefix("transformers-").removesuffix(".dist-info") if found else ""
