"""Many targets at once: one line each as they end, in processes of their own. Loads neither torch
nor transformers.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, final

from attncheck.core.verdict import Verdict
from attncheck.suite.plan import Job

if TYPE_CHECKING:
    from attncheck.cli.present import Presenter

GIB = 1 << 30


@final
@dataclass(frozen=True)
class Workers:
    """How many processes, where their reports are kept, and what one target may take."""

    count: int
    folder: Path | None
    seconds: float
    gib: float


def sweep(
    jobs: Sequence[Job], presenter: Presenter, fail_on: frozenset[Verdict], workers: Workers
) -> int:
    """Run the jobs in worker processes, show a line for each, and write one report of all."""
    from attncheck.run import sweep as sweeps
    from attncheck.run.session import Session, TargetFinished

    session = Session(
        command=shlex.join(["attncheck", *sys.argv[1:]]), listener=presenter.hears, fail_on=fail_on
    )
    every = [replace(job, target=target) for job in jobs for target in sweeps.expand([job.target])]
    limits = sweeps.Limits(seconds=workers.seconds, memory=int(workers.gib * GIB))
    presenter.output = "lines" if presenter.output == "table" else presenter.output
    kept = nullcontext(workers.folder) if workers.folder is not None else TemporaryDirectory()
    with presenter, kept as folder:
        try:
            for target in sweeps.run_jobs(
                every, workers=workers.count, limits=limits, folder=Path(folder)
            ):
                session.adopt(target)
                presenter.hears(TargetFinished(target), session.report)
            code = session.report.exit_code
        except KeyboardInterrupt:
            code = 130
        presenter.ends(session.finished(code))
    return code
