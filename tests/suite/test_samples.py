"""Every sample suite runs as a user would run it, and comes to what its comments say."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
import yaml

from attncheck.__main__ import main
from attncheck.report.schema import first_complaint
from attncheck.suite.schema import suite_schema
from attncheck.suite.starter import starter

SAMPLES = Path(__file__).parents[2] / "sample_configs"
FILES = sorted(SAMPLES.glob("*.yaml"))


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNCHECK_REPORTS", str(tmp_path / "reports"))
    return tmp_path / "reports"


def ran(file: str, *options: str, folder: Path) -> dict[str, dict[str, str]]:
    """Run a sample; verdicts by target and probe."""
    out = folder / "out.json"
    folder.mkdir(parents=True, exist_ok=True)
    assert (
        main(["run", "-q", "--suite", str(SAMPLES / file), "--report", f"json={out}", *options])
        == 0
    )
    data = json.loads(out.read_text())
    assert first_complaint(data) == ""
    found: dict[str, dict[str, str]] = {}
    for target in data["targets"]:
        found.setdefault(target["target"], {}).update(
            {each["probe"]: each["verdict"] for each in target["results"]}
        )
    return found


def test_quick(reports: Path) -> None:
    found = ran("quick.yaml", folder=reports)
    assert set(found) == {"builtin:gqa", "builtin:window"}
    assert found["builtin:gqa"]["decode-paths"] == "pass"


def test_full(reports: Path) -> None:
    # Every probe of the full suite runs elsewhere; here it is the suite that is under test.
    found = ran("full.yaml", "--probe", "future-token", "--probe", "kv-repeat", folder=reports)
    assert len(found) == 5
    assert {name["future-token"] for name in found.values()} == {"pass"}
    assert sorted(path.name for path in reports.iterdir()) == [
        "full.html",
        "full.json",
        "full.md",
        "out.json",
    ]


def test_gate(reports: Path) -> None:
    found = ran("ci-gate.yaml", folder=reports)
    assert found["builtin:broken-positions"]["decode-paths"] == "fail"
    root = ET.parse(reports / "junit.xml").getroot()
    assert (root.get("failures"), root.get("skipped")) == ("0", "2")
    results = json.loads((reports / "attncheck.sarif").read_text())["runs"][0]["results"]
    assert [each["ruleId"] for each in results if "suppressions" in each] == [
        "decode-paths",
        "position-reset",
    ]


def test_packing(reports: Path) -> None:
    found = ran("packing.yaml", folder=reports)
    assert found == {
        "builtin:gqa": {"document-leakage": "fail"},
        "builtin:moe": {"document-leakage": "fail"},
    }


def test_long_context(reports: Path) -> None:
    found = ran("long-context.yaml", folder=reports)
    assert {verdict for probes in found.values() for verdict in probes.values()} == {"pass"}
    data = json.loads((reports / "out.json").read_text())
    names = [case["name"] for case in data["targets"][1]["results"][0]["cases"]]
    assert names[0].startswith("chunks 64+64")
    assert {target["settings"]["length"] for target in data["targets"]} == {128}


def test_matrix(reports: Path) -> None:
    found = ran("matrix.yaml", "--tag", "quick", folder=reports)
    assert set(found) == {"builtin:gqa"}
    data = json.loads((reports / "out.json").read_text())
    spec = [(each["settings"]["attn"], each["settings"]["dtype"]) for each in data["targets"]]
    assert spec == [("eager", "float64"), ("sdpa", "float64"), ("sdpa", "float32")]


def test_nothing_selected_is_exit_code_5(reports: Path) -> None:
    assert main(["run", "-q", "--suite", str(SAMPLES / "matrix.yaml"), "--tag", "nowhere"]) == 5


def test_the_schema_beside_the_samples_is_the_present_one() -> None:
    saved = json.loads((SAMPLES / "attncheck.schema.json").read_text())
    command = "attncheck schema suite > sample_configs/attncheck.schema.json"
    assert saved == suite_schema(), f"write it again: {command}"


@pytest.mark.parametrize("text", [file.read_text() for file in FILES] + [starter("builtin:gqa")])
def test_samples_fit_the_schema_and_name_it(text: str) -> None:
    first = text.splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    plain = json.loads(json.dumps(yaml.safe_load(text), default=str))
    jsonschema.Draft202012Validator(suite_schema()).validate(plain)


def test_every_sample_is_run_here() -> None:
    source = Path(__file__).read_text()
    assert [file.name for file in FILES if f'"{file.name}"' not in source] == []
