"""Progress on stderr, and only on a terminal, so that results on stdout stay clean."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, final


@final
class ProgressLine:
    """A live line: target, probe, number of forwards, time. Silent unless stderr is a terminal."""

    def __init__(self, enabled: bool, probes: int) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._forwards = 0
        self._probes = max(1, probes)
        if enabled and sys.stderr.isatty():
            self._bar = self._make()

    def _make(self) -> Any:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.TextColumn(
                "{task.completed}/{task.total} probes, {task.fields[forwards]} passes"
            ),
            progress.TimeElapsedColumn(),
        )
        return progress.Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False
        )

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._probes, forwards=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def says(self, what: str) -> None:
        """Show what runs now."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def advance(self) -> None:
        """One probe is finished."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def forward(self, tokens: int) -> None:
        """One forward is about to run."""
        self._forwards += 1
        if self._bar is not None:
            self._bar.update(self._task, forwards=self._forwards)
