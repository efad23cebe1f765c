"""Many targets, each in a process of its own with a limit on time and memory: a crash or a hang
ends one of them.

The report of each target is written as soon as it is there. A second sweep with the same folder
goes on where the first one stopped: a report is taken from the folder where versions, settings and
probes are the same.
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
from tempfile import TemporaryDirectory
from typing import Any, final

from attncheck.core.settings import Settings
from attncheck.report.model import TargetReport
from attncheck.report.record import from_json
from attncheck.report.write import write_report
from attncheck.run.session import Session, environment
from attncheck.suite.plan import Job
from attncheck.targets import random_init
from attncheck.targets.target import is_glob as is_glob

PRELOADED = ("torch", "transformers", "attncheck.run.session")


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one target may take: seconds by the clock, bytes of memory of its own."""

    seconds: float = 180.0
    memory: int = 6 << 30


def expand(targets: Sequence[str]) -> list[str]:
    """The targets with every glob replaced by the config types that it matches in this release.

    Raises:
        TargetError: a glob that matches nothing.
    """
    found = [
        name
        for target in targets
        for name in (random_init.matching(target) if is_glob(target) else [target])
    ]
    return list(dict.fromkeys(found))


def sweep(
    patterns: Sequence[str],
    settings: Settings,
    probes: Sequence[str],
    *,
    workers: int = 1,
    limits: Limits | None = None,
    folder: Path | None = None,
) -> Iterator[TargetReport]:
    """The report of every target that the patterns stand for, in the order in which they end.

    `folder` keeps one report a target and makes the sweep resumable; without it nothing is kept.

    Raises:
        TargetError: a pattern that matches nothing.
    """
    calls = tuple((name, dict[str, Any]()) for name in probes)
    jobs = [
        Job(target=target, settings=settings, probes=calls, home=Path.cwd())
        for target in expand(patterns)
    ]
    with TemporaryDirectory() as scratch:
        yield from run_jobs(
            jobs, workers=workers, limits=limits or Limits(), folder=folder or Path(scratch)
        )


def run_jobs(
    jobs: Sequence[Job], *, workers: int, limits: Limits, folder: Path
) -> Iterator[TargetReport]:
    """Run jobs, at most `workers` at a time, and yield each report; the folder is made where it is
    missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = []
    for job in jobs:
        known = _kept(folder, job)
        if known is None:
            waiting.append(job)
        else:
            yield known
    yield from _Pool(workers, limits, folder).run(waiting)


def key_of(job: Job) -> str:
    """What makes two runs of a target the same: versions, settings, probes with their options."""
    here = {name: value for name, value in environment().items() if name != "platform"}
    text = json.dumps([here, vars(job.settings), job.probes], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _path(folder: Path, job: Job) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', job.target)}.{key_of(job)}.json"


def _kept(folder: Path, job: Job) -> TargetReport | None:
    try:
        return from_json(_path(folder, job).read_text(encoding="utf-8")).targets[0]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _alone(job: Job, path: Path, memory: int) -> None:
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
    started: float
    path: Path


@final
@dataclass
class _Pool:
    """Starts processes, waits for them, and ends those that take too long."""

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
        path = _path(self.folder, job)
        process = context.Process(target=_alone, args=(job, path, self.limits.memory), daemon=True)
        process.start()
        self.running.append(_Running(job, process, time.perf_counter(), path))

    def _ended(self) -> Iterator[TargetReport]:
        """Wait until a process ends or its time is up; the reports of those that did."""
        now = time.perf_counter()
        left = min(each.started + self.limits.seconds - now for each in self.running)
        wait([each.process.sentinel for each in self.running], timeout=max(0.0, left))
        for each in list(self.running):
            seconds = time.perf_counter() - each.started
            if not each.process.is_alive():
                yield self._result(
                    each, seconds, f"its process ended with {_code(each.process.exitcode)}"
                )
            elif seconds >= self.limits.seconds:
                each.process.kill()
                yield self._result(each, seconds, f"not finished after {seconds:.0f} seconds")

    def _result(self, each: _Running, seconds: float, otherwise: str) -> TargetReport:
        each.process.join()
        self.running.remove(each)
        known = _kept(self.folder, each.job)
        if known is not None:
            return replace(known, seconds=seconds)
        spec = vars(each.job.settings)
        return TargetReport(
            target=each.job.target,
            settings=spec,
            seconds=seconds,
            error=f"{each.job.target}: {otherwise}",
        )


def _code(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _context() -> Any:
    """Processes forked from a server that has the libraries loaded already, where the platform has
    one.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context
