"""Many targets, each in a process of its own with a limit on time and memory, so that a crash or a
hang ends one of them only.

The report of each target is written as soon as it is finished. A second sweep with the same folder
resumes the first: it takes a report from the folder where what is loaded, code, settings and probes
are the same.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import UsageError
from attncheck.report.model import TargetReport
from attncheck.run.task import Limits, Task
from attncheck.run.worker import TIMED_OUT, run_alone
from attncheck.suite.plan import Job
from attncheck.targets import random_init
from attncheck.targets.target import is_glob

PRELOADED = ("torch", "transformers", "attncheck.run.session")
LOCK = ".lock"
GRACE = 10.0
"""Seconds in which a process whose time is up may still write what it has found."""


def expand(targets: Sequence[str]) -> list[str]:
    """The targets, with every glob replaced by the config types of this release that it matches.

    Raises:
        TargetError: a glob that matches nothing.
    """
    found = (random_init.matching(each) if is_glob(each) else [each] for each in targets)
    return list(dict.fromkeys(name for names in found for name in names))


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Jobs, each in a process of its own, at most `workers` at a time. The folder keeps one report
    per target; scripts that show failures go to `repro`.
    """

    jobs: Sequence[Job]
    workers: int
    limits: Limits
    folder: Path
    repro: Path | None = None

    @cached_property
    def _tasks(self) -> list[Task]:
        return [Task(place, job, self.folder, self.repro) for place, job in enumerate(self.jobs)]

    def run(self) -> Generator[tuple[int, TargetReport]]:
        """The place of each job with its report, as it is finished; what an earlier run finished
        comes first.

        Raises:
            UsageError: another run works in this folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(self.folder):
            waiting = []
            for task in self._tasks:
                known = task.saved() if task.known else None
                if known is None:
                    waiting.append(task)
                else:
                    yield task.place, known
            yield from _Pool(self.workers, self.limits).run(waiting)

    def begun(self) -> Iterator[tuple[int, TargetReport]]:
        """What a run that was stopped had found on targets that it has not finished."""
        for task in self._tasks:
            report = task.read()
            if report is not None and report.incomplete:
                words = f"{task.job.target}: stopped after {report.incomplete}"
                yield task.place, replace(report.targets[0], error=words)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep's folder, and remove what killed runs left half written."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UsageError(
                f"--sweep-dir {folder}: process {lock.read().strip()} is running a sweep there: "
                "wait for it, or give another folder"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        for half in folder.glob(".*.part"):
            half.unlink(missing_ok=True)
        yield


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
class _Pool:
    """Starts processes, waits for them, and ends those that run too long."""

    workers: int
    limits: Limits
    running: list[_Running] = field(default_factory=list)

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, TargetReport]]:
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

    def _ended(self) -> Iterator[tuple[int, TargetReport]]:
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

    def _report(self, each: _Running, failure: str) -> tuple[int, TargetReport]:
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
