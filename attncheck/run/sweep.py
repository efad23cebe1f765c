"""Many targets, each in a process of its own with a limit on time and memory, so that a crash or a
hang ends one of them only.

The report of each target is written as soon as it is finished. A second sweep with the same folder
resumes the first: it takes a report from the folder where what is loaded, code, settings and probes
are the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, final

from attncheck.core.errors import UsageError
from attncheck.run.on_ray import RayPool
from attncheck.run.pool import Placed, Pool
from attncheck.run.task import Limits, Task
from attncheck.suite.plan import Job
from attncheck.targets import random_init
from attncheck.targets.target import is_glob

LOCK = ".lock"
Executor = Literal["processes", "ray"]


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
    """Jobs, each in a process of its own, at most `workers` at a time, or on a cluster. The folder
    keeps one report per target; scripts that show failures go to `repro`.
    """

    jobs: Sequence[Job]
    workers: int
    limits: Limits
    folder: Path
    repro: Path | None = None
    executor: Executor = "processes"

    @cached_property
    def _tasks(self) -> list[Task]:
        return [Task(place, job, self.folder, self.repro) for place, job in enumerate(self.jobs)]

    def run(self) -> Generator[Placed]:
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
            pool = RayPool if self.executor == "ray" else Pool
            yield from pool(self.workers, self.limits).run(waiting)

    def begun(self) -> Iterator[Placed]:
        """What a run that was stopped had found, also on targets that it has not finished. A whole
        report may be of an earlier run: it counts where files tell that the same would be loaded.
        """
        for task in self._tasks:
            report = task.read()
            if report is None or not (report.incomplete or task.known):
                continue
            words = f"{task.job.target}: stopped after {report.incomplete}"
            found = report.targets[0]
            yield task.place, replace(found, error=words) if report.incomplete else found


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
