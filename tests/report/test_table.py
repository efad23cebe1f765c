"""One finding as a table."""

from __future__ import annotations

import pytest
from report.reports import failing

from attncheck.report.table import finding_text, script_lines


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
