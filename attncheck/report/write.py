"""Write a report to a file atomically: a reader sees the last complete state."""

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
    """Rewrites the reports of a run whenever something is finished.

    Reports that take longer than `AT_ONCE` seconds to write are rewritten so rarely that writing
    takes a tenth of the time. At the end of each target, and of the run, they `must` be written.
    """

    destinations: Sequence[tuple[str, Path]]
    _took: float = 0.0
    _ended: float = 0.0

    def write(self, report: Report, must: bool = False) -> None:
        """Write every report, unless that would take too much of the time."""
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
    """Write to a temporary file in the same folder, then rename it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, path)
