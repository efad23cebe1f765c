"""SARIF fits its standard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
from report.reports import everything, failing

from attncheck.report.model import TargetReport
from attncheck.report.sarif import sarif

SARIF = json.loads((Path(__file__).parent / "sarif_schema.json").read_text(encoding="utf-8"))


def test_sarif_fits_the_standard() -> None:
    log = json.loads(sarif(everything()))
    jsonschema.Draft202012Validator(SARIF).validate(log)
    (run,) = log["runs"]
    levels = {(r["ruleId"], r["properties"]["target"]): r["level"] for r in run["results"]}
    assert levels[("decode-paths", "builtin:gqa")] == "error"
    assert levels[("kv-repeat", "builtin:gqa")] == "warning"
    assert levels[("position-reset", "builtin:gqa")] == "warning"
    assert ("future-token", "builtin:gqa") not in levels
    suppressed = [r for r in run["results"] if "suppressions" in r]
    assert [r["suppressions"][0]["justification"] for r in suppressed] == [
        "expected: soon, until 2027-01-01 https://x.y/1",
        "in the baseline",
    ]
    assert all(
        run["tool"]["driver"]["rules"][r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"]
    )
    assert run["invocations"][0]["executionSuccessful"] is False


def test_sarif_fingerprints_tell_findings_apart() -> None:
    log = json.loads(sarif(everything()))
    prints = [r["partialFingerprints"]["attncheck/v1"] for r in log["runs"][0]["results"]]
    assert len(set(prints)) == len(prints)


def test_a_factory_is_pointed_at_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\n\n\ndef make():\n    return None\n")
    target = TargetReport(target=f"{file}:make", results=(failing(),))
    log = json.loads(sarif(replace(everything(), targets=(target,))))
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("/mine.py")
    assert place["region"] == {"startLine": 4}
