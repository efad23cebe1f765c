"""What a command will write, checked before anything is loaded. Loads neither torch nor
transformers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from attncheck.core.errors import UsageError

Output = tuple[str, Path]
"""How the user wrote an output, such as `--report json=a.json`, and its path."""


def check_files(outputs: Iterable[Output], inputs: Iterable[Path] = ()) -> None:
    """Refuse files that cannot be written, are given twice, or would replace what is read.

    Raises:
        UsageError: in one line, with the option.
    """
    from attncheck.report.write import followed, why_not_written

    read = {followed(path) for path in inputs if os.path.isfile(path)}
    taken: dict[Path, str] = {}
    for option, path in outputs:
        reason = why_not_written(path)
        if reason:
            raise UsageError(f"{option}: {reason}")
        place = followed(path)
        if place in read:
            raise UsageError(f"{option}: would replace `{path}`, which this run reads")
        if place in taken and str(place) != os.devnull:
            raise UsageError(f"{option}: {taken[place]} is written to the same path")
        taken[place] = option


def written(option: str, path: Path, content: str | bytes) -> None:
    """Write a file at the end of a command; one that cannot be written is said in one line."""
    from attncheck.report.write import reason_of, write_bytes

    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        write_bytes(path, data)
    except OSError as error:
        print(f"attncheck: {option}: not written: {reason_of(error)}", file=sys.stderr)


def check_folders(outputs: Iterable[tuple[str, Path | None]]) -> None:
    """Refuse folders into which nothing can be written.

    Raises:
        UsageError: in one line, with the option.
    """
    from attncheck.report.write import why_no_folder

    for option, path in outputs:
        reason = why_no_folder(path) if path is not None else ""
        if reason:
            raise UsageError(f"{option} {path}: {reason}")
