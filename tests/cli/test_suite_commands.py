"""init, validate, schema, --baseline: the commands of the gate, by their output and exit codes."""

import json
from pathlib import Path

import pytest

from attncheck.__main__ import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    return tmp_path


def test_init_then_validate_then_run_from_below(repository: Path, capsys: Capture) -> None:
    assert main(["init", "--folder", str(repository)]) == 0
    assert main(["validate", str(repository / "attncheck.yaml")]) == 0
    assert "1 model, 1 setting" in capsys.readouterr().out
    assert main(["run", "-q", "--probe", "kv-repeat"]) == 0
    shown = capsys.readouterr()
    assert f"running the suite {repository / 'attncheck.yaml'}" in shown.err
    assert shown.out.startswith("1 pass on 1 model")
    assert (
        json.loads((repository / ".attncheck.schema.json").read_text())["title"]
        == "attncheck suite"
    )


def test_init_does_not_write_over_a_suite(repository: Path, capsys: Capture) -> None:
    suite = repository / "attncheck.yaml"
    suite.write_text("models: [builtin:mha]\n")
    assert main(["init", "--folder", str(repository)]) == 2
    assert "exists already (--force overwrites it)" in capsys.readouterr().err
    assert main(["init", "builtin:moe", "--force", "--folder", str(repository)]) == 0
    assert "- builtin:moe" in suite.read_text()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.yaml",
            "models: [builtin:gqaa]\n",
            "a.yaml:1:10: `builtin:gqaa`: builtin:gqaa: unknown built-in model `gqaa`",
        ),
        (
            "a.json",
            '{"schema": "attncheck/1"}',
            "a.json: report: 'attncheck' is a required property",
        ),
        ("b.json", '{"schema": "attncheck-baseline/1"}', "baseline b.json: expected `schema`"),
        ("c.json", "{\n]", "c.json:2:1: not valid JSON: Expecting property name"),
        ("d.json", "[NaN]", "d.json: not valid JSON: `NaN` is no JSON"),
    ],
)
def test_validate_names_what_is_wrong(
    repository: Path, capsys: Capture, name: str, text: str, message: str
) -> None:
    Path(name).write_text(text)
    assert main(["validate", name]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"attncheck: {message}")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("which", "title"), [("suite", "attncheck suite"), ("report", "attncheck report")]
)
def test_schema(capsys: Capture, which: str, title: str) -> None:
    assert main(["schema", which]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == title


def test_targets_and_a_suite_are_not_both(repository: Path, capsys: Capture) -> None:
    assert main(["run", "builtin:gqa", "--suite", "x.yaml"]) == 2
    assert "not both" in capsys.readouterr().err


def test_a_baseline_silences_what_it_holds_and_tells_what_is_gone(
    repository: Path, capsys: Capture
) -> None:
    spec = ["run", "builtin:broken-mask", "-q", "--probe", "future-token", "--probe", "kv-repeat"]
    assert main([*spec, "--write-baseline", "known.json"]) == 1
    assert main(["validate", "known.json"]) == 0
    assert main([*spec, "--baseline", "known.json", "--report", "json=now.json"]) == 0
    assert main(["validate", "now.json"]) == 0
    capsys.readouterr()
    known = json.loads(Path("known.json").read_text())
    known["findings"] = [each for each in known["findings"] if "next" not in each["case"]]
    gone = {
        "target": "builtin:broken-mask",
        "attn": "sdpa",
        "probe": "kv-repeat",
        "verdict": "warn",
        "case": "old",
        "fault": "",
    }
    Path("known.json").write_text(json.dumps({**known, "findings": [*known["findings"], gone]}))
    assert main([*spec, "--baseline", "known.json"]) == 1
    assert (
        "note: builtin:broken-mask: kv-repeat, old: in the baseline and gone"
        in capsys.readouterr().out
    )


def test_options_override_a_suite(repository: Path) -> None:
    Path("suite.yaml").write_text(
        "models: [builtin:gqa]\nsettings: {attn: [eager, sdpa], dtype: float64}\nprobes: [kv-repeat]\n"
    )
    assert (
        main(
            [
                "run",
                "-q",
                "--suite",
                "suite.yaml",
                "--dtype",
                "float32",
                "--attn",
                "sdpa",
                "--report",
                "json=r.json",
            ]
        )
        == 0
    )
    (target,) = json.loads(Path("r.json").read_text())["targets"]
    assert (target["settings"]["attn"], target["settings"]["dtype"]) == ("sdpa", "float32")


def test_github_gets_annotations_on_stderr_and_a_summary(
    repository: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository / "summary.md"))
    assert main(["run", "builtin:broken-mask", "--format", "json", "--probe", "future-token"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["exit_code"] == 1
    assert "::error title=future-token on builtin%3Abroken-mask" in shown.err
    assert "future-token" in (repository / "summary.md").read_text()
