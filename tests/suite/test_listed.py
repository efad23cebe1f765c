"""A list of targets: one a line, with settings, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.errors import SuiteError
from attncheck.suite.listed import read_targets


def listed(folder: Path, text: str) -> Path:
    path = folder / "models.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_is_a_target_with_its_settings(tmp_path: Path) -> None:
    text = """# models
builtin:gqa

org/name@v2  dtype=bfloat16 --layers=4 random-init  # small
builtin:gqa attn=eager seed=-3 trust_remote_code=false
config:qwen* prompt="two words"
"""
    found = read_targets(listed(tmp_path, text))
    assert [(each.target, dict(each.settings)) for each in found] == [
        ("builtin:gqa", {}),
        ("org/name@v2", {"dtype": "bfloat16", "layers": 4, "random_init": True}),
        ("builtin:gqa", {"attn": "eager", "seed": -3, "trust_remote_code": False}),
        ("config:qwen*", {"prompt": "two words"}),
    ]
    assert found[1].where == f"{tmp_path}/models.txt:4"


def test_a_path_is_relative_to_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def make(): ...\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (found,) = read_targets(listed(tmp_path, "./mine.py:make\n"))
    assert found.target == "../mine.py:make"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("builtin:gqb\n", ":1: builtin:gqb: unknown built-in model `gqb`: did you mean `gqa`?"),
        ("builtin:gqa\norg/x layer=4\n", ":2: unknown setting `layer`: did you mean `layers`?"),
        ("org/x layers=two\n", ":1: --layers 'two': expected a number from 1 to 65536"),
        ("org/x attn\n", ":1: attn: expected attn=VALUE"),
        ("org/x random-init=maybe\n", ":1: --random-init 'maybe': expected true or false"),
        ("org/x dtype=float8\n", ":1: unknown dtype `float8`: did you mean `float64`?"),
        ("org/x prompt='open\n", ":1: No closing quotation"),
        ("org/x\n\norg/x\n", ":3: org/x with these settings stands at "),
        ("# nothing\n", ": no targets: expected one a line"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SuiteError) as error:
        read_targets(listed(tmp_path, text))
    assert str(error.value).startswith(f"{tmp_path}/models.txt{message}")


def test_a_list_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"none\.txt: cannot be read: No such file or directory"):
        read_targets(tmp_path / "none.txt")
