"""Writing a report to a file, atomically: whoever reads it sees the last finished state, never half
of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from attncheck.report.html import html
from attncheck.report.junit import junit
from attncheck.report.markdown import markdown
from attncheck.report.model import Report
from attncheck.report.record import to_json
from attncheck.report.sarif import sarif

FORMATS: dict[str, Callable[[Report], str]] = {
    "json": to_json,
    "junit": junit,
    "sarif": sarif,
    "markdown": markdown,
    "html": html,
}


AT_ONCE = 0.1
SHARE = 10


@final
@dataclass
class Writer:
    """Writes the reports of a run anew whenever something is finished.

    Reports that take longer than `AT_ONCE` seconds to write are written so seldom that writing
    takes a tenth of the time, and whenever it `must` be: at the end of each target, and at the end.
    """

    destinations: Sequence[tuple[str, Path]]
    _took: float = 0.0
    _ended: float = 0.0

    def write(self, report: Report, must: bool = False) -> None:
        """Write every report, unless that has to wait."""
        started = time.monotonic()
        if not must and self._took > AT_ONCE and started < self._ended + SHARE * self._took:
            return
        for kind, path in self.destinations:
            write_report(report, kind, path)
        self._ended = time.monotonic()
        self._took = self._ended - started


def write_report(report: Report, kind: str, path: Path) -> None:
    """Write a report in one of `FORMATS`; the file appears or changes as a whole."""
    write_text(path, FORMATS[kind](report))


def write_text(path: Path, text: str) -> None:
    """Write beside the file, then put it in its place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_text(text + "\n", encoding="utf-8")
    os.replace(beside, path)
