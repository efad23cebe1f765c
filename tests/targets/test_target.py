"""What the user typed, told apart or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.errors import TargetError
from attncheck.targets.target import is_glob, parse


def test_only_config_targets_are_globs() -> None:
    assert is_glob("config:qwen*")
    assert is_glob("config:[ab]*")
    assert not is_glob("config:qwen2")
    assert not is_glob("models/*.gguf")


def test_kinds_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "weights.gguf").write_bytes(b"")
    (tmp_path / "make.py").write_text("")
    kinds = {
        "builtin:gqa": "builtin",
        "config:llama": "config",
        "model": "folder",
        str(tmp_path / "model"): "folder",
        "weights.gguf": "gguf",
        "make.py:factory": "factory",
        "org/name": "hub",
        "gpt2": "hub",
    }
    assert {text: parse(text).kind for text in kinds} == kinds


def test_a_revision_is_cut_off() -> None:
    target = parse("org/name@v1.0")
    assert (target.where, target.revision) == ("org/name", "v1.0")
    assert parse("org/name").revision is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("builtin:gaq", "builtin:gaq: unknown built-in model `gaq`: did you mean `gqa`?"),
        ("nope.py:make", "nope.py:make: no such file `nope.py`"),
        ("nope.gguf", "nope.gguf: no such file"),
        ("./nowhere", "./nowhere: no such file or folder"),
        ("/nowhere", "/nowhere: no such file or folder"),
        ("a/b/c", "a/b/c: no such folder, and not a hub id (`org/name`)"),
    ],
)
def test_what_is_none_of_them_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(TargetError) as error:
        parse(text)
    assert str(error.value) == message


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the folder holds no config.json"):
        parse(str(tmp_path))


def test_a_factory_needs_a_name(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("")
    with pytest.raises(
        TargetError, match="expected the name of a function after the colon, got ``"
    ):
        parse(f"{tmp_path}/make.py:")
