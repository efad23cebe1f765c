"""Processes that check one target each, with a limit on time and memory, on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, final

from attncheck.report.model import TargetReport
from attncheck.run.task import Limits, Task
from attncheck.run.worker import TIMED_OUT, run_alone

PRELOADED = ("torch", "transformers", "attncheck.run.session")
GRACE = 10.0
"""Seconds in which a process whose time is up may still write what it has found."""
Placed = tuple[int, TargetReport]
"""The place of a task, and its report."""


@final
@dataclass
class _Running:
    task: Task
    process: Any
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


@final
@dataclass
class Pool:
    """Starts processes, waits for them, and ends those that run too long."""

    workers: int
    limits: Limits
    running: list[_Running] = field(default_factory=list)

    def run(self, tasks: Sequence[Task]) -> Iterator[Placed]:
        """The report of each task, as it is finished."""
        waiting = list(reversed(tasks))
        context = _context()
        try:
            while waiting or self.running:
                while waiting and len(self.running) < max(1, self.workers):
                    self._start(context, waiting.pop())
                yield from self._ended()
        finally:
            for left in self.running:
                left.process.kill()
            for left in self.running:
                left.process.join()

    def _start(self, context: Any, task: Task) -> None:
        process = context.Process(target=run_alone, args=(task, self.limits), daemon=True)
        process.start()
        self.running.append(_Running(task, process))

    def _ended(self) -> Iterator[Placed]:
        """Wait until a process ends or its time is up; the reports of those processes."""
        longest = self.limits.seconds + GRACE
        left = min(longest - each.seconds for each in self.running)
        wait([each.process.sentinel for each in self.running], timeout=max(0.0, left))
        for each in list(self.running):
            if not each.process.is_alive():
                yield self._report(each, f"its process ended with {_code(each.process.exitcode)}")
            elif each.seconds >= longest:
                each.process.kill()
                yield self._report(each, f"not finished after {each.seconds:.0f} seconds")

    def _report(self, each: _Running, failure: str) -> Placed:
        """The report that the process wrote; one that is not whole says why."""
        seconds, task = each.seconds, each.task
        each.process.join()
        self.running.remove(each)
        found = task.saved()
        if found is None:
            partly, job = task.read(), task.job
            begun = partly.targets[0] if partly else None
            asked = TargetReport(target=job.target, settings=vars(job.settings))
            found = replace(begun or asked, error=f"{job.target}: {failure}")
        elif each.process.exitcode == TIMED_OUT or task.changed():
            task.forget()
        return task.place, replace(found, seconds=seconds)


def _code(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _context() -> Any:
    """Where the platform has one, a server that has loaded the libraries forks the processes."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context
