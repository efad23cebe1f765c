"""What a finding counts as: a suite may expect it, a baseline may hold it, and what is gone again
is reported.
"""

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
    """Holds findings against a suite and a baseline. `today` decides what has expired."""

    baseline: Baseline | None = None
    today: datetime.date = field(default_factory=datetime.date.today)

    def settle(
        self, job: Job, target: TargetReport, finding: Finding
    ) -> tuple[Finding, TargetReport]:
        """The finding, marked as known where it is, and the target with what there is to say about
        the suite's entries.
        """
        settled, notes = settle(finding, job.expected, self.today)
        if self.baseline is not None:
            settled = self.baseline.mark(target, settled)
        return settled, replace(target, notes=(*target.notes, *notes))

    def closing(self, report: Report) -> Report:
        """The report with a line for each finding of the baseline that is gone."""
        return (
            report
            if self.baseline is None
            else replace(report, notes=(*report.notes, *self.baseline.vanished(report)))
        )
