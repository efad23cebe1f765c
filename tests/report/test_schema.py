"""The schema of reports: stored as the types give it, and compatible with the first version."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report.reports import everything

from attncheck.__main__ import main
from attncheck.report.record import from_json, to_json
from attncheck.report.schema import first_complaint

HERE = Path(__file__).parent


def test_the_stored_schema_is_the_one_that_the_command_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema", "report"]) == 0
    stored = files("attncheck.report").joinpath("schema.json").read_text(encoding="utf-8")
    assert json.loads(stored) == json.loads(capsys.readouterr().out), (
        "run `attncheck schema report > attncheck/report/schema.json`"
    )


def test_a_report_of_the_first_version_is_valid_and_is_written_back_unchanged() -> None:
    text = (HERE / "report_0.1.0.json").read_text(encoding="utf-8")
    assert first_complaint(json.loads(text)) == ""
    assert json.loads(to_json(from_json(text))) == {**json.loads(text), "traps": []}


def test_a_report_fits_the_schema_of_the_first_version() -> None:
    schema = json.loads((HERE / "schema_0.1.0.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(to_json(everything())))


def test_a_broken_report_is_refused_with_the_place() -> None:
    data = json.loads(to_json(everything()))
    data["targets"][0]["results"][0]["cases"][0]["positions"] = "many"
    with pytest.raises(ValueError, match=r"targets\.0\.results\.0\.cases\.0\.positions: "):
        from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("exit_code",), 4, "report.exit_code: 4 is not one of"),
        (
            ("targets", 0, "results", 0, "verdict"),
            "passed",
            "report.targets[0].results[0].verdict: 'passed' is not one of",
        ),
        (
            ("targets", 0, "results", 0, "cases", 0, "max_abs"),
            "many",
            "report.targets[0].results[0].cases[0].max_abs",
        ),
        (("summary", "fail"), -1, "report.summary.fail: -1 is less than the minimum"),
    ],
)
def test_the_schema_refuses(path: tuple[Any, ...], value: Any, complaint: str) -> None:
    data = json.loads(to_json(everything()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert first_complaint(data).startswith(complaint)
