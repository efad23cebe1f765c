"""The process that checks one target of a sweep, and keeps its report on disk as it grows."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import final

from attncheck.core.errors import END_PROCESS, Unsupported
from attncheck.model.subject import Subject
from attncheck.report.model import Report
from attncheck.report.write import Writer, write_text
from attncheck.run.deadline import time_limit
from attncheck.run.events import TargetFinished
from attncheck.run.examining import usual_examination
from attncheck.run.identity import of_loaded
from attncheck.run.runner import ProbeFinished
from attncheck.run.session import (
    Session,
    SessionEvent,
    load_job,
)
from attncheck.run.task import Limits, Task
from attncheck.suite.plan import Job

RESULTS = (ProbeFinished, TargetFinished)
TIMED_OUT = 75
"""The exit code of a process whose report is whole as far as the time allowed."""


def run_alone(task: Task, limits: Limits) -> None:
    """Run one job in this process and write its report. Exits with `TIMED_OUT` if it took too
    long.
    """
    import torch

    torch.set_num_threads(1)
    _keep_to_itself()
    _limit_memory(limits.memory)
    work = _Work(task)
    session = Session(
        command="sweep",
        listener=work.listen,
        loader=work.load,
        limit=partial(time_limit, limits.seconds),
        examine=usual_examination(task.repro),
    )
    # What is expected or in a baseline is settled where all reports come together.
    report = session.run([replace(task.job, expected=())])
    if not work.unchanged:
        work.keep(report)
    if session.timed_out:
        sys.exit(TIMED_OUT)


def _keep_to_itself() -> None:
    """Print nothing on stdout, leave signals to the process that started this one, and end with
    it.
    """
    os.dup2(2, 1)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    END_PROCESS(1)


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@final
@dataclass
class _Work:
    """Loads the target and writes its report, unless what was loaded has been checked before.

    Where only the loaded model tells what it is, its digest is kept beside the report.
    """

    task: Task
    unchanged: bool = False
    digest: str = ""
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.writer = Writer([("json", self.task.path)])

    @property
    def _mark(self) -> Path:
        return self.task.path.with_suffix(".loaded")

    def load(self, job: Job) -> Subject:
        subject = load_job(job)
        if not self.task.known:
            self.digest = of_loaded(subject.model)
            self.unchanged = self.task.saved() is not None and self._was() == self.digest
            if self.unchanged:
                raise Unsupported("checked before")
            self._mark.unlink(missing_ok=True)
        return subject

    def _was(self) -> str:
        with contextlib.suppress(OSError):
            return self._mark.read_text(encoding="ascii").strip()
        return ""

    def listen(self, event: SessionEvent, report: Report) -> None:
        if report.targets and not self.unchanged:
            self.writer.write(report, must=isinstance(event, RESULTS))

    def keep(self, report: Report) -> None:
        self.writer.write(report, must=True)
        if self.digest:
            write_text(self._mark, self.digest)
