"""The terminal: results on stdout, progress on stderr and only where somebody sees it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from rich.console import Console


@final
class ProgressLine:
    """A live line: target, probe, number of forwards, time. Silent unless stderr is a terminal."""

    def __init__(self, enabled: bool, probes: int = 1) -> None:
        self._bar = _bar() if enabled and sys.stderr.isatty() else None
        self._probes = max(1, probes)
        self._task: Any = None
        self._forwards = 0

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._probes, forwards=0)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _update(self, **changes: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **changes)

    def show(self, what: str) -> None:
        """Show what runs now."""
        self._update(description=what)

    def advance(self) -> None:
        """One probe is finished."""
        self._update(advance=1)

    def forward(self, tokens: int) -> None:
        """One forward is about to run."""
        self._forwards += 1
        self._update(forwards=self._forwards)


def _bar() -> Any:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.TextColumn(
            "{task.completed}/{task.total} probes, {task.fields[forwards]} forwards"
        ),
        progress.TimeElapsedColumn(),
    )
    return progress.Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False
    )


def console(color: bool) -> Console:
    """A console for results on stdout, at least 80 columns wide."""
    from attncheck.report.console import VisibleConsole

    out = VisibleConsole(
        file=sys.stdout, no_color=not color, highlight=False, emoji=False, markup=False
    )
    out.width = max(80, out.width)
    return out
