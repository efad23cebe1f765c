"""Options as every command takes them: environment variables, and blanks in values."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer

from attncheck.__main__ import main
from attncheck.cli.app import app
from attncheck.cli.options import REPORTS, ModelOptions, expanded, option
from attncheck.core.settings import Settings
from attncheck.report.write import FORMATS
from attncheck.triage.answer import Question

Capture = pytest.CaptureFixture[str]
FAST = ("builtin:gqa", "--probe", "kv-repeat")
WORDS = "tests/triage/reported_models.py:with_words"
"""A model with a tokenizer: others take no prompt."""


def test_every_option_of_every_command_has_an_environment_variable() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    without = [
        (name, option.name)
        for name, command in commands.items()
        for option in command.params
        if option.param_type_name == "option" and option.name != "help"
        if not str(option.envvar or "").lstrip("['").startswith("ATTNCHECK_")
    ]
    assert without == []
    run = {option.opts[0]: option.envvar for option in commands["run"].params}
    assert run["--sweep-dir"] == "ATTNCHECK_SWEEP_DIR"
    assert run["--format"] == "ATTNCHECK_FORMAT"
    assert run["--no-color"] == ["ATTNCHECK_NO_COLOR", "NO_COLOR"]


def settings_of(capsys: Capture, *arguments: str, run: tuple[str, ...] = FAST) -> dict[str, object]:
    assert main(["run", *run, "--format", "json", *arguments]) == 0
    return dict(json.loads(capsys.readouterr().out)["targets"][0]["settings"]["asked"])


def test_an_option_can_be_set_by_its_environment_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ATTNCHECK_DTYPE", "float32")
    monkeypatch.setenv("ATTNCHECK_LENGTH", "12")
    asked = settings_of(capsys)
    assert (asked["dtype"], asked["length"]) == ("float32", 12)
    assert settings_of(capsys, "--dtype", "float64")["dtype"] == "float64"


def test_a_prompt_of_two_words_in_the_environment_is_one_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ATTNCHECK_PROMPT", "two words")
    assert settings_of(capsys, run=(WORDS, *FAST[1:]))["prompt"] == "two words"


@pytest.mark.parametrize(
    ("value", "prompts"),
    [("two words", ("two words",)), ("one more\n\nand another\n", ("one more", "and another"))],
)
def test_prompts_of_triage_are_separated_by_line_ends(
    monkeypatch: pytest.MonkeyPatch, value: str, prompts: tuple[str, ...]
) -> None:
    seen: list[Question] = []

    def answered(
        target: str, settings: Settings, question: Question, *rest: object, **more: object
    ) -> None:
        seen.append(question)
        raise typer.Exit

    monkeypatch.setattr("attncheck.cli.triage._answered", answered)
    monkeypatch.setenv("ATTNCHECK_PROMPT", value)
    main(["triage", "builtin:gqa"])
    assert [question.prompts for question in seen] == [prompts]


@pytest.mark.parametrize("where", ["environment", "command line"])
def test_a_report_path_may_contain_blanks(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "path with blanks"
    folder.mkdir()
    value = f"json={folder}/my report.json"
    if where == "environment":
        monkeypatch.setenv("ATTNCHECK_REPORT", value)
        assert main(["run", *FAST, "-q"]) == 0
    else:
        assert main(["run", *FAST, "-q", "--report", value]) == 0
    assert os.listdir(folder) == ["my report.json"]


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_several_reports_in_the_environment(
    separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a b.json", "c d.html")
    reports = [f"{name.rpartition('.')[2]}={tmp_path}/{name}" for name in names]
    monkeypatch.setenv("ATTNCHECK_REPORT", separator.join(reports))
    assert main(["run", *FAST, "-q"]) == 0
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_the_formats_of_reports_are_those_that_can_be_written() -> None:
    assert set(REPORTS) == set(FORMATS)


def test_names_in_the_environment_are_separated_by_blanks(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ATTNCHECK_PROBE", "kv-repeat decode-paths")
    assert main(["run", "builtin:gqa", "--format", "jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["probe"] for line in lines] == ["decode-paths", "kv-repeat"]


def test_a_parameter_of_the_command_takes_the_place_of_a_field() -> None:
    seen: list[object] = []

    @expanded
    def command(
        *,
        options: ModelOptions,
        attn: list[str] | None = option(None, "Several.", "NAME", panel="Model"),
    ) -> None:
        seen.extend([options, attn])

    app = typer.Typer()
    app.command()(command)
    app(["--attn", "eager", "--attn", "sdpa", "--layers", "2"], standalone_mode=False)
    assert seen == [ModelOptions(layers=2), ["eager", "sdpa"]]
