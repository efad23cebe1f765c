"""A sweep whose targets are spread over a cluster by Ray (`pip install 'attncheck[ray]'`).

On its machine each target has a process of its own with the limits of a sweep, as with `--jobs`. A
machine or a Ray worker that is lost costs what it was doing: Ray does that again elsewhere. Reports
come back to where the run was started, and are kept there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import UsageError, first_line
from attncheck.core.version import __version__
from attncheck.report.model import Report, TargetReport
from attncheck.report.record import from_json, to_json
from attncheck.report.write import write_text
from attncheck.run.pool import Placed, Pool
from attncheck.run.task import Limits, Task

RETRIES = 3
"""How often a target is begun again after its machine or its worker was lost."""
ADDRESS = "RAY_ADDRESS"
NEVER = "1970-01-01T00:00:00Z"


@final
@dataclass(frozen=True)
class RayPool:
    """Runs tasks on a cluster: the one that `RAY_ADDRESS` names, else one on this machine with as
    many `workers`.
    """

    workers: int
    limits: Limits

    def run(self, tasks: Sequence[Task]) -> Iterator[Placed]:
        """The report of each task, as it is finished, which is kept in the folder of its task."""
        if not tasks:
            return
        ray = _ray()
        with _cluster(ray, self.workers):
            remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_found)
            waiting = {remote.remote(task, self.limits): task for task in tasks}
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                yield _kept(ray, done, waiting.pop(done))


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UsageError("--executor ray: pip install 'attncheck[ray]'") from error
    return ray


@contextlib.contextmanager
def _cluster(ray: Any, workers: int) -> Iterator[None]:
    """Join the cluster, or start one on this machine; leave it at the end."""
    given: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if not os.environ.get(ADDRESS):
        given |= {"num_cpus": max(1, workers), "include_dashboard": False}
    started = not ray.is_initialized()
    if started:
        ray.init(**given)
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def _found(task: Task, limits: Limits) -> tuple[str, bool]:
    """The report of one task as JSON text, and whether a run that resumes may take it. Runs on a
    machine of the cluster.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = replace(task, folder=Path(folder))
        ((_, target),) = Pool(1, limits).run([here])
        report = here.read() or Report(attncheck=__version__, command="sweep", started=NEVER)
        return to_json(replace(report, targets=(target,))), here.saved() is not None


def _kept(ray: Any, done: Any, task: Task) -> Placed:
    """The report of a task that has ended; a whole one is kept for a run that resumes."""
    try:
        text, whole = ray.get(done)
    except ray.exceptions.RayError as error:
        return task.place, _lost(task, first_line(error))
    if whole:
        write_text(task.path, text)
    return task.place, from_json(text).targets[0]


def _lost(task: Task, why: str) -> TargetReport:
    job = task.job
    return TargetReport(
        target=job.target, settings=vars(job.settings), error=f"{job.target}: not finished: {why}"
    )
