"""replay: a saved failure runs again, under the recorded settings or under others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attncheck.__main__ import main
from attncheck.core.settings import Settings
from attncheck.targets import load as loading

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def saved_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("replay") / "my report.json"
    probes = ("--probe", "future-token", "--probe", "kv-repeat", "--length", "12")
    assert main(["run", "builtin:broken-mask", *probes, "-q", "--report", f"json={path}"]) == 1
    return str(path)


@pytest.fixture
def loaded_with(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of every model that is loaded from now on."""
    seen: list[Settings] = []
    load = loading.load

    def noted(target: str, settings: Settings) -> Any:
        seen.append(settings)
        return load(target, settings)

    monkeypatch.setattr(loading, "load", noted)
    return seen


def test_what_failed_still_fails_under_the_recorded_settings(
    saved_report: str, loaded_with: list[Settings], capsys: Capture
) -> None:
    capsys.readouterr()
    assert main(["replay", saved_report]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("builtin:broken-mask/future-token: ")
    assert [settings.length for settings in loaded_with] == [12]


def test_options_replace_recorded_settings(saved_report: str, loaded_with: list[Settings]) -> None:
    assert main(["replay", saved_report, "future-token", "--dtype", "float32"]) == 1
    assert [(each.dtype, each.length) for each in loaded_with] == [("float32", 12)]


def test_a_script_that_cannot_be_offered_is_explained(saved_report: str, capsys: Capture) -> None:
    capsys.readouterr()
    main(["replay", saved_report, "builtin:broken-mask/future-token", "--script"])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("builtin:broken-mask/future-token: no script: ")


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("future-tokn", "unknown finding `future-tokn`: did you mean"),
        (
            "nothing",
            "unknown finding `nothing`: expected one of `builtin:broken-mask/future-token`",
        ),
    ],
)
def test_an_unknown_finding_is_refused(
    saved_report: str, which: str, message: str, capsys: Capture
) -> None:
    assert main(["replay", saved_report, which]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_report_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["replay", str(tmp_path / "x.json")]) == 2
    assert "x.json: not a report of this tool (" in capsys.readouterr().err


def test_a_report_without_failures_is_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "r.json"
    main(["run", "builtin:gqa", "--probe", "kv-repeat", "-q", "--report", f"json={path}"])
    assert main(["replay", str(path)]) == 2
    assert "the report holds no failure to run again" in capsys.readouterr().err


def recorded(saved_report: str, folder: Path, **changes: Any) -> Path:
    """The saved report with other settings, as anybody could have written it."""
    data = json.loads(Path(saved_report).read_text())
    data["targets"][0]["settings"]["asked"].update(changes)
    path = folder / "changed.json"
    path.write_text(json.dumps(data))
    return path


def test_code_of_a_repository_runs_only_where_the_command_line_allows_it(
    saved_report: str, tmp_path: Path, loaded_with: list[Settings], capsys: Capture
) -> None:
    path = recorded(saved_report, tmp_path, trust_remote_code=True)
    capsys.readouterr()
    assert main(["replay", str(path)]) == 1
    assert capsys.readouterr().err == (
        "attncheck: builtin:broken-mask was checked with --trust-remote-code: its code runs only "
        "where the option is given here\n"
    )
    assert main(["replay", str(path), "--trust-remote-code"]) == 1
    assert [settings.trust_remote_code for settings in loaded_with] == [False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "two"}, "--layers 'two': expected a number from 1 to 65536"),
        ({"dtype": "nonsense"}, "unknown dtype `nonsense`: expected one of `auto`, `bfloat16`"),
        ({"trust_remote_code": False, "offline": 1}, "--offline 1: expected true or false"),
    ],
)
def test_settings_of_a_report_are_checked_like_those_of_the_command_line(
    saved_report: str, tmp_path: Path, capsys: Capture, changes: dict[str, Any], message: str
) -> None:
    path = recorded(saved_report, tmp_path, **changes)
    capsys.readouterr()
    assert main(["replay", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"attncheck: {path}: builtin:broken-mask: {message}")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("got", [{}, {"tokens": 3}, {"tokens": [["x"]]}, [], None])
def test_a_forward_of_a_report_that_cannot_be_read_is_one_line(
    saved_report: str, tmp_path: Path, capsys: Capture, got: Any
) -> None:
    data = json.loads(Path(saved_report).read_text())
    for result in data["targets"][0]["results"]:
        result["replay"]["got"] = got
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    capsys.readouterr()
    assert main(["replay", str(path), "future-token"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("attncheck: future-token: its recorded forward cannot be read: ")
    assert shown.count("\n") == 1
