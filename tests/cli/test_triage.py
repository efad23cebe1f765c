"""`attncheck triage`: usage errors, the report and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--symptom", "batsch"], "unknown symptom `batsch`: did you mean `batch`?"),
        (["--padding-side", "lefty"], "unknown padding side `lefty`: did you mean `left`?"),
        (["--cache", "statik"], "unknown cache `statik`: did you mean `static`?"),
        (["--report", "pdf=x"], "unknown report format `pdf`: expected one of `markdown`"),
        (["--report", "markdown=/no/such/folder/x.md"], "no such folder"),
        (["--against", "builtin:gpa"], "unknown built-in model `gpa`: did you mean `gqa`?"),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["triage", "builtin:gqa", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_report_is_written_and_the_exit_code_says_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    assert (
        main(["triage", "builtin:broken-mask", "--report", f"markdown={path}", "--no-progress"])
        == 1
    )
    assert "mask-off-by-one" in path.read_text()


def test_prompts_without_a_tokenizer_are_refused_as_in_a_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("run", "triage"):
        assert main([command, "builtin:gqa", "--prompt", "hello", "--no-progress"]) == 2
        shown = capsys.readouterr()
        said = "builtin:gqa: --prompt needs a tokenizer, and this target has none\n"
        assert said in shown.out + shown.err
