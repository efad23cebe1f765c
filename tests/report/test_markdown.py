"""Markdown keeps one table row for each probe."""

from __future__ import annotations

import re

from report.reports import everything

from attncheck.report.markdown import markdown


def test_markdown_is_one_table_row_a_probe() -> None:
    text = markdown(everything())
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 9
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "<tag>" not in text.split("```")[0]
    assert "**reproduced: `position-restart`** to 3.0e-13" in text
