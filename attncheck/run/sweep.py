"""Many targets, each in a process of its own with a limit on time and memory, so that a crash or a
hang ends one of them only.

The report of each target is written as soon as it is finished. A second sweep with the same folder
resumes the first: it takes a report from the folder where versions, settings and probes are the
same.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, final

from attncheck.report.model import TargetReport
from attncheck.report.record import from_json
from attncheck.report.write import write_report
from attncheck.run.session import Session, environment
from attncheck.suite.plan import Job
from attncheck.targets import random_init
from attncheck.targets.target import is_glob

PRELOADED = ("torch", "transformers", "attncheck.run.session")


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one target may use: seconds of wall-clock time, bytes of memory of its own."""

    seconds: float = 180.0
    memory: int = 6 << 30


def expand(targets: Sequence[str]) -> list[str]:
    """The targets, with every glob replaced by the config types of this release that it matches.

    Raises:
        TargetError: a glob that matches nothing.
    """
    found = (random_init.matching(each) if is_glob(each) else [each] for each in targets)
    return list(dict.fromkeys(name for names in found for name in names))


def run_jobs(
    jobs: Sequence[Job], *, workers: int, limits: Limits, folder: Path
) -> Iterator[TargetReport]:
    """Run jobs, at most `workers` at a time, and yield each report as it is finished. The folder is
    created where it is missing, and keeps one report per target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = [(job, _saved(folder, job)) for job in jobs]
    yield from (report for _, report in known if report is not None)
    waiting = [job for job, report in known if report is None]
    yield from _Pool(workers, limits, folder).run(waiting)


def key_of(job: Job) -> str:
    """What makes two runs of a target the same: versions, settings, probes with their options."""
    here = {name: value for name, value in environment().items() if name != "platform"}
    text = json.dumps([here, vars(job.settings), job.probes], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _path(folder: Path, job: Job) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', job.target)}.{key_of(job)}.json"


def _saved(folder: Path, job: Job) -> TargetReport | None:
    try:
        return from_json(_path(folder, job).read_text(encoding="utf-8")).targets[0]
    except (OSError, ValueError, IndexError):
        return None


def _run_alone(job: Job, path: Path, memory: int) -> None:
    """Run one job in this process and write its report, whole or not at all."""
    import torch

    torch.set_num_threads(1)
    _limit_memory(memory)
    session = Session(command="sweep", listener=lambda event, report: None)
    write_report(session.run([job]), "json", path)


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@final
@dataclass
class _Running:
    job: Job
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
    folder: Path
    running: list[_Running] = field(default_factory=list)

    def run(self, jobs: Sequence[Job]) -> Iterator[TargetReport]:
        waiting = list(reversed(jobs))
        context = _context()
        try:
            while waiting or self.running:
                while waiting and len(self.running) < max(1, self.workers):
                    self._start(context, waiting.pop())
                yield from self._ended()
        finally:
            for left in self.running:
                left.process.kill()

    def _start(self, context: Any, job: Job) -> None:
        arguments = (job, _path(self.folder, job), self.limits.memory)
        process = context.Process(target=_run_alone, args=arguments, daemon=True)
        process.start()
        self.running.append(_Running(job, process))

    def _ended(self) -> Iterator[TargetReport]:
        """Wait until a process ends or its time is up; the reports of those processes."""
        left = min(self.limits.seconds - each.seconds for each in self.running)
        wait([each.process.sentinel for each in self.running], timeout=max(0.0, left))
        for each in list(self.running):
            if not each.process.is_alive():
                yield self._report(each, f"its process ended with {_code(each.process.exitcode)}")
            elif each.seconds >= self.limits.seconds:
                each.process.kill()
                yield self._report(each, f"not finished after {each.seconds:.0f} seconds")

    def _report(self, each: _Running, failure: str) -> TargetReport:
        """The report that the process wrote, or one that says why there is none."""
        seconds, job = each.seconds, each.job
        each.process.join()
        self.running.remove(each)
        failed = TargetReport(
            target=job.target, settings=vars(job.settings), error=f"{job.target}: {failure}"
        )
        return replace(_saved(self.folder, job) or failed, seconds=seconds)


def _code(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _context() -> Any:
    """Where the platform has one, a server that has loaded the libraries forks the processes."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context
