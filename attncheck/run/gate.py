"""Which findings count: a suite may expect them, or they are in the baseline."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.finding import Finding
from attncheck.report.baseline import Baseline
from attncheck.report.model import Report, TargetReport
from attncheck.suite.expected import settle
from attncheck.suite.plan import Job


@final
@dataclass(frozen=True, kw_only=True)
class Gate:
    """Checks findings against a suite and a baseline. `today` decides what has expired."""

    baseline: Baseline | None = None
    today: datetime.date = field(default_factory=datetime.date.today)

    def settle(
        self, job: Job, target: TargetReport, finding: Finding
    ) -> tuple[Finding, TargetReport]:
        """The finding, marked where it is known; the target with notes on the suite's entries."""
        settled, notes = settle(finding, job.expected, self.today)
        if self.baseline is not None:
            settled = self.baseline.mark(target, settled)
        return settled, replace(target, notes=(*target.notes, *notes))

    def settle_all(self, job: Job, target: TargetReport) -> TargetReport:
        """A target that was checked elsewhere, with every finding settled."""
        settled: list[Finding] = []
        for finding in target.results:
            found, target = self.settle(job, target, finding)
            settled.append(found)
        return replace(target, results=tuple(settled))

    def closing(self, report: Report) -> Report:
        """The report with a line for each finding of the baseline that is gone."""
        gone = self.baseline.vanished(report) if self.baseline is not None else ()
        return replace(report, notes=(*report.notes, *gone))
