"""Writing a report to a file, atomically: whoever reads it sees the last finished state, never half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from attncheck.report.html import html
from attncheck.report.junit import junit
from attncheck.report.markdown import markdown
from attncheck.report.model import Report, to_json
from attncheck.report.sarif import sarif

FORMATS: dict[str, Callable[[Report], str]] = {
    "json": to_json,
    "junit": junit,
    "sarif": sarif,
    "markdown": markdown,
    "html": html,
}


def write_report(report: Report, kind: str, path: Path) -> None:
    """Write a report in one of `FORMATS`; the file appears or changes as a whole."""
    write_text(path, FORMATS[kind](report))


def write_text(path: Path, text: str) -> None:
    """Write beside the file, then put it in its place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_text(text + "\n", encoding="utf-8")
    os.replace(beside, path)
