"""Write a report to a file atomically: a reader sees the last complete state."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, final

from attncheck.core.errors import first_line
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
    Devices and pipes get one report, at the end. What cannot be written is said in one line.
    """

    destinations: Sequence[tuple[str, Path]]
    _took: float = 0.0
    _ended: float = 0.0
    _said: set[str] = field(default_factory=set)

    def write(self, report: Report, must: bool = False) -> None:
        """Write every report, unless that would take too much of the time."""
        started = time.monotonic()
        if not must and self._took > AT_ONCE and started < self._ended + SHARE * self._took:
            return
        for kind, path in self.destinations:
            if not is_stream(path):
                self._write(report, kind, path)
        self._ended = time.monotonic()
        self._took = self._ended - started

    def finish(self, report: Report) -> None:
        """Write every report of a run that has ended."""
        for kind, path in self.destinations:
            self._write(report, kind, path)

    def _write(self, report: Report, kind: str, path: Path) -> None:
        try:
            write_report(report, kind, path)
        except Exception as error:  # a renderer's own fault loses its report only
            line = f"attncheck: {kind} report {path}: not written: {reason_of(error)}"
            if line not in self._said:
                self._said.add(line)
                print(line, file=sys.stderr)


def reason_of(error: Exception) -> str:
    """Why something could not be written, in a few words."""
    return (isinstance(error, OSError) and error.strerror) or first_line(error)


def write_report(report: Report, kind: str, path: Path) -> None:
    """Write a report in one of `FORMATS`; the file appears or changes as a whole."""
    write_text(path, FORMATS[kind](report))


def write_text(path: Path, text: str) -> None:
    """Write text and a line break; a file appears or changes as a whole.

    Raises:
        OSError: the path cannot be written.
    """
    write_bytes(path, f"{text}\n".encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, then rename it. Symbolic links are followed; a
    device or a pipe is written to.

    Raises:
        OSError: the path cannot be written.
    """
    place = followed(path)
    if is_stream(place):
        sys.stdout.flush()
        with _stream(place) as out:
            out.write(data)
        return
    part = place.with_name(f".{place.name[:64]}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        if place.exists():
            part.chmod(stat.S_IMODE(place.stat().st_mode))
        os.replace(part, place)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if error.errno not in NO_RENAME or not place.is_file():
            raise
        place.write_bytes(data)


NO_RENAME = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS, errno.EXDEV)
"""Errors of a folder in which no file can be made or replaced, though one in it can be written."""
DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")
NUMBERS = {"stdout": 1, "stderr": 2}
MOST_LINKS = 40


def followed(path: Path) -> Path:
    """The absolute path that symbolic links lead to, up to a descriptor of this process.

    Raises:
        OSError: the links lead in a circle.
    """
    place = Path.cwd() / path
    for _ in range(MOST_LINKS):
        if DESCRIPTOR.fullmatch(str(place)):
            return place
        if not place.is_symlink():
            return place.parent.resolve() / place.name
        place = place.parent / place.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or a descriptor: no file that could be replaced."""
    place = followed(path)
    return bool(DESCRIPTOR.fullmatch(str(place))) or (
        place.exists() and not place.is_file() and not place.is_dir()
    )


def _stream(place: Path) -> IO[bytes]:
    found = DESCRIPTOR.fullmatch(str(place))
    if found:
        return os.fdopen(os.dup(NUMBERS.get(found[1] or "") or int(found[2])), "wb")
    # A pipe that nobody reads is an error here, and not a run without end.
    descriptor = os.open(place, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def why_not_written(path: Path) -> str:
    """Why a file cannot be written at this path, as far as can be known before; else empty."""
    try:
        place = followed(path)
        if place.is_dir():
            return "this is a folder"
        if not place.parent.is_dir():
            return f"no such folder `{path.parent}`"
        there = place.exists() or is_stream(place)
        allowed = os.access(place if there else place.parent, os.W_OK)
        return "" if allowed else "no permission to write there"
    except OSError as error:
        return reason_of(error)


def why_no_folder(path: Path) -> str:
    """Why files cannot be written into this folder, which may have to be made; else empty."""
    try:
        place = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not place.is_dir():
            return f"`{place}` is no folder"
        return "" if os.access(place, os.W_OK) else f"no permission to write in `{place}`"
    except OSError as error:
        return reason_of(error)
