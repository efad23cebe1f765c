"""Names and messages that hold escape sequences reach no terminal and no page as such, and names of
folders do not stand in for what was asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.core.settings import Settings
from attncheck.report.record import from_json
from attncheck.suite.request import RunRequest
from attncheck.targets.target import canonical, parse

HOSTILE = """
import torch
from conftest import tiny_llama

SIGNS = "\\x1b[31m\\x07\\u202e<b>"

def named():
    model = tiny_llama()
    model.__class__ = type(SIGNS, (type(model),), {})
    return model

def raising():
    model = tiny_llama()
    def forward(*given, **named):
        raise RuntimeError(SIGNS + "\\nsecond line")
    model.forward = forward
    return model
"""
SIGNS = {"\x1b", "\x07", "\u202e"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.py").write_text(HOSTILE)
    return tmp_path


@pytest.mark.parametrize("factory", ["named", "raising"])
def test_no_escape_sequence_is_shown(
    factory: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "step.md"))
    kinds = ("markdown", "html", "junit", "json", "sarif")
    reports = [f"--report={kind}={folder / kind}" for kind in kinds]
    code = main(["run", f"hostile.py:{factory}", "--probe", "kv-repeat", *reports, "-v"])
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, *((folder / kind).read_text() for kind in (*kinds, "step.md"))]
    assert code == (0 if factory == "named" else 1)
    assert not [text for text in texts if SIGNS & set(text)]
    assert r"\x1b[31m\x07\u202e<b>" in shown.out
    assert r"\u202e<b>" not in (folder / "html").read_text()
    (target,) = from_json((folder / "json").read_text()).targets
    assert target.target == f"hostile.py:{factory}"


def test_a_folder_that_is_called_like_a_type_is_not_that_type(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text("no config at all")
    assert main(["run", "config:llama", "--probe", "kv-repeat", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_one_target_has_one_spelling(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    spellings = {
        "./hostile.py:named": "hostile.py:named",
        ".//hostile.py:named": "hostile.py:named",
        "model/../hostile.py:named": "hostile.py:named",
        "hostile.py:named": "hostile.py:named",
        "./model": "model",
        "model/": "model",
        "./nowhere": "./nowhere",
        "builtin:gqa": "builtin:gqa",
        "config:llama": "config:llama",
        "org/name": "org/name",
    }
    assert {text: canonical(text) for text in spellings} == spellings
    assert parse("./hostile.py:named").text == "hostile.py:named"
    jobs = RunRequest(targets=("./model/", "./hostile.py:named"), settings=Settings()).plan().jobs
    assert [job.target for job in jobs] == ["model", "hostile.py:named"]
