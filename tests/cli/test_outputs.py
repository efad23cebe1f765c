"""Outputs are checked before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attncheck.__main__ import main

SUITE = "models: [builtin:gqa]\nreports: {{json: {json}, html: {html}}}\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with one of each; a model that is loaded is a failure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("kept")
    (tmp_path / "make.py").write_text("raise AssertionError('loaded')\n")
    (tmp_path / "link.json").symlink_to("folder/../a.json")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "same.yaml").write_text(SUITE.format(json="r", html="./r"))
    (tmp_path / "lost.yaml").write_text(SUITE.format(json="file.txt/r", html="h"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run make.py:f --report json=folder", "--report json=folder: this is a folder"),
        ("run make.py:f --report json=no/r", "--report json=no/r: no such folder `no`"),
        (
            "run make.py:f --report json=make.py",
            "--report json=make.py: would replace `make.py`, which this run reads",
        ),
        (
            "run make.py:f --report json=a.json --report html=folder/../link.json",
            "--report html=folder/../link.json: --report json=a.json is written to the same path",
        ),
        (
            "run make.py:f --report json=circle",
            "--report json=circle: Too many levels of symbolic links",
        ),
        (
            f"run make.py:f --report json={'x' * 300}",
            f"--report json={'x' * 300}: File name too long",
        ),
        (
            "run make.py:f --report json=a --write-baseline a",
            "--write-baseline a: --report json=a is written to the same path",
        ),
        ("run make.py:f --repro file.txt", "--repro file.txt: `file.txt` is no folder"),
        (
            "run make.py:f --sweep-dir file.txt/x",
            "--sweep-dir file.txt/x: `{home}/file.txt` is no folder",
        ),
        (
            "run --suite same.yaml",
            "same.yaml: reports: html: r: same.yaml: reports: json: r is written to the same path",
        ),
        (
            "run --suite lost.yaml",
            "lost.yaml: reports: json: file.txt/r: no such folder `file.txt`",
        ),
        ("run make.py:f --timeout 0", "--timeout 0: expected a number above 0"),
        ("run make.py:f --timeout nan", "--timeout nan: expected a number above 0"),
        ("run make.py:f --memory -1", "--memory -1: expected a number above 0"),
        (
            "run make.py:f --memory 2",
            "--memory limits the processes of a sweep: give --jobs or --sweep-dir too",
        ),
        (
            "run make.py:f --compile --probe kv-repeat",
            "--compile is for the probe `implementations`, which this run leaves out",
        ),
        ("triage make.py:f --report markdown=folder", "--report markdown=folder: this is a folder"),
        ("triage make.py:f --repro file.txt", "--repro file.txt: `file.txt` is no folder"),
        ("mask make.py:f --svg folder", "--svg folder: this is a folder"),
        ("mask make.py:f --svg a --png a", "--png a: --svg a is written to the same path"),
        (
            "record make.py:f -o no/t.safetensors",
            "--output no/t.safetensors: no such folder `no`",
        ),
        ("selftest make.py:f --coverage folder", "--coverage folder: this is a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, message: str
) -> None:
    before = sorted(os.listdir())
    assert main(arguments.split()) == 2
    shown = capsys.readouterr()
    assert shown.err.replace("\n", "") == f"attncheck: {message.format(home=tmp_path)}"
    assert shown.out == ""
    assert sorted(os.listdir()) == before
    assert Path("file.txt").read_text() == "kept"
