"""A job whose target is an engine: its report before any check, and its findings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding, skipped_finding
from attncheck.core.visible import made_visible
from attncheck.engines import against
from attncheck.engines.examination import EngineExamination, asks_an_engine, examined_in_engine
from attncheck.report.model import TargetReport
from attncheck.suite.plan import Job


@final
class UnclaimedType:
    """What stands for an examination where the engine does not know this type of model."""

    def __init__(self, reason: Unsupported) -> None:
        self.reason = str(reason)

    def findings(self) -> Iterator[Finding]:
        """One skip, with the reason."""
        yield skipped_finding(against.NAME, self.reason)


def on_engine(job: Job) -> bool:
    """Whether a job asks an engine."""
    return asks_an_engine(job.target, job.settings)


@contextlib.contextmanager
def engine_findings(
    job: Job, tells: Callable[[str], None]
) -> Iterator[tuple[TargetReport, Iterator[Finding]]]:
    """The report of an engine before any check, and its findings as they are measured.

    Raises:
        TargetError: the engine cannot be opened.
    """
    settings = {
        "dtype": job.settings.dtype,
        "seed": job.settings.seed,
        "asked": {
            n: value for n, value in vars(job.settings).items() if value not in (None, False)
        },
    }
    report = TargetReport(target=job.target, model={"class": "engine"}, settings=settings)
    with contextlib.ExitStack() as stack:
        found: EngineExamination | UnclaimedType
        try:
            found = stack.enter_context(examined_in_engine(job.target, job.settings))
            found.tells = tells
            report = replace(report, model=found.model, notes=found.notes)
        except Unsupported as reason:
            found = UnclaimedType(reason)
        yield made_visible(report), found.findings()
