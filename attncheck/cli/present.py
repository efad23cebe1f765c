"""Shows a run: results on stdout, progress on stderr, reports in files as soon as they change."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

from attncheck.cli.stopping import stop_if_asked
from attncheck.cli.terminal import ProgressLine, console
from attncheck.core.allocator import return_freed_memory
from attncheck.core.finding import Finding
from attncheck.report import terminal
from attncheck.report.failures import failure_blocks
from attncheck.report.github import tell_github
from attncheck.report.model import Report
from attncheck.report.record import finding_json, to_json
from attncheck.report.screen import finding_line
from attncheck.report.table import finding_block
from attncheck.report.write import Writer
from attncheck.run.events import TargetFinished, TargetLoaded, TargetStarted
from attncheck.run.runner import ControlStarted, ProbeFinished, ProbeStarted
from attncheck.run.session import SessionEvent


@final
class Presenter:
    """Listens to a session and shows it."""

    def __init__(
        self,
        *,
        output: str,
        destinations: Sequence[tuple[str, Path]],
        probes: int,
        verbose: bool,
        progress: bool,
        color: bool,
        traps: bool = False,
    ) -> None:
        self.output = output
        self.writer = Writer(destinations)
        self.verbose = verbose
        self.traps = traps
        self.noted = 0
        self.stdout = sys.stdout
        self.count_targets = False
        self.console = console(color)
        self.progress = ProgressLine(progress, probes)

    def listen(self, event: SessionEvent, report: Report) -> None:
        """Show an event; update the reports if it brought a result.

        Raises:
            Stopped: a signal has arrived, and code of a model has swallowed it.
        """
        stop_if_asked()
        self._show_progress(event)
        with self.progress.hidden():
            self._show(event)
        if isinstance(event, (ProbeFinished, TargetFinished)):
            return_freed_memory()
            self.writer.write(report, must=isinstance(event, TargetFinished))

    def _show(self, event: SessionEvent) -> None:
        if self.output == "table":
            self._print(event)
        elif self.output == "lines" and isinstance(event, TargetFinished):
            self.console.print(terminal.target_line(event.target))
        elif self.output == "jsonl" and isinstance(event, ProbeFinished):
            line = {"target": event.target, **finding_json(event.finding)}
            print(json.dumps(line, ensure_ascii=False), file=self.stdout, flush=True)

    def finish(self, report: Report) -> None:
        """Print the summary line, or the whole report as JSON."""
        self.writer.finish(report)
        with self.progress.hidden():
            self._close(report)

    def _close(self, report: Report) -> None:
        for line in tell_github(report):
            print(line, file=sys.stderr)
        if self.output == "json":
            print(to_json(report), file=self.stdout)
        elif self.output in ("table", "lines", "quiet"):
            self._print_notes(report.notes)
            if self.output == "quiet":
                self._print_errors(report)
            if self.output != "quiet" and report.targets:
                self.console.print(str(report.questions), style="dim", highlight=False)
            for text in terminal.closing_lines(report, self.console.width, self.traps):
                self.console.print(text)

    def _print_errors(self, report: Report) -> None:
        for target in report.targets:
            if target.error is not None:
                print(f"attncheck: {target.error}", file=sys.stderr)

    def _print(self, event: SessionEvent) -> None:
        if isinstance(event, TargetFinished) and event.target.error is None:
            self._print_notes(event.target.notes[self.noted :])
            for line in failure_blocks(event.target, self.console.width):
                self.console.print(line, soft_wrap=True)
        elif isinstance(event, (TargetLoaded, TargetFinished)):
            self.noted = len(event.target.notes)
            terminal.print_heading(event.target, self.console, self.verbose)
        elif isinstance(event, ProbeFinished):
            self._print_finding(event.finding)

    def _print_finding(self, finding: Finding) -> None:
        if self.verbose:
            for block in finding_block(finding, True):
                self.console.print(block)
        else:
            self.console.print(finding_line(finding, self.console.width))

    def _print_notes(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.console.print(f"note: {note}")

    def _show_progress(self, event: SessionEvent) -> None:
        if isinstance(event, TargetStarted):
            self.progress.show(f"loading {event.target}")
        elif isinstance(event, ProbeStarted):
            self.progress.show(f"{event.target}: {event.probe}")
        elif isinstance(event, ControlStarted):
            self.progress.show(f"{event.target}: {event.probe} with {event.fault} injected")
        elif isinstance(event, TargetFinished if self.count_targets else ProbeFinished):
            self.progress.advance()
