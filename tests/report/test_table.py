"""One finding as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.reports import failing

from attncheck.core.finding import Diagnosis
from attncheck.report.table import fault_text, finding_text, script_lines


@pytest.mark.parametrize(
    ("replay", "line"),
    [
        ({"script": "out/decode-paths.py"}, "without attncheck: python out/decode-paths.py"),
        ({"no_script": "the model is no file"}, "no script: the model is no file"),
    ],
)
def test_a_requested_script_is_named_or_its_absence_explained(
    replay: dict[str, str], line: str
) -> None:
    finding = failing(replay=replay)
    assert script_lines(finding) == [line]
    assert line in finding_text(finding)
    assert script_lines(failing()) == []


def test_what_was_measured_and_has_no_name_is_said_to_be_like_its_family() -> None:
    measured = Diagnosis(fault="", how="measured", residual=3e-14, family="cache-wrong-slot")
    assert fault_text(measured) == "like cache-wrong-slot to 3.0e-14"
    assert fault_text(replace(measured, family="")) == "a fault without a name to 3.0e-14"
