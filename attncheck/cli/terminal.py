"""The terminal: results on stdout, progress on stderr and only where somebody sees it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from rich.console import Console


@final
class ProgressLine:
    """A live line: what runs, how much is done, forwards, time. Silent unless stderr is a
    terminal.
    """

    def __init__(self, enabled: bool, probes: int = 1) -> None:
        self._bar = _bar() if enabled and sys.stderr.isatty() else None
        self._probes = max(1, probes)
        self._task: Any = None
        self._forwards = 0

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                "starting", total=self._probes, forwards=0, what="probes"
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the line away while results are printed: both may be on one terminal."""
        if self._bar is None or not self._bar.live.is_started:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()

    def count(self, total: int, what: str) -> None:
        """Count something other than probes, such as the targets of a sweep."""
        self._update(total=max(1, total), what=what)

    def _update(self, **changes: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **changes)

    def show(self, what: str) -> None:
        """Show what runs now."""
        self._update(description=what)

    def advance(self) -> None:
        """One of what is counted is finished."""
        self._update(advance=1)

    def forward(self, tokens: int) -> None:
        """One forward is about to run."""
        self._forwards += 1
        self._update(forwards=self._forwards)


def _bar() -> Any:
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    name = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    done = "{task.completed}/{task.total} {task.fields[what]}, {task.fields[forwards]} forwards"
    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", table_column=name),
        progress.BarColumn(bar_width=12),
        progress.TextColumn(done, table_column=Column(no_wrap=True)),
        progress.TimeElapsedColumn(),
    )
    return progress.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        expand=True,
    )


@contextlib.contextmanager
def announced(what: str, enabled: bool) -> Iterator[None]:
    """Show on a terminal that something takes seconds before any progress can be drawn."""
    shown = enabled and sys.stderr.isatty()
    if shown:
        print(f"{what} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def console(color: bool) -> Console:
    """A console for results on stdout, at least 80 columns wide."""
    from attncheck.report.console import VisibleConsole

    out = VisibleConsole(
        file=sys.stdout, no_color=not color, highlight=False, emoji=False, markup=False
    )
    out.width = max(80, out.width)
    return out
