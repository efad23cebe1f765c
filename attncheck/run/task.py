"""One target of a sweep: where its report is kept, and when a saved report can be taken."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from attncheck.report.model import Report, TargetReport
from attncheck.report.record import from_json
from attncheck.run.beginning import environment
from attncheck.run.identity import code_of, digest, identity
from attncheck.suite.plan import Job

NAME = 80
"""Letters of a target in the name of its report; the key after them tells targets apart."""


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one target may use: seconds of wall-clock time, bytes of memory of its own."""

    seconds: float = 180.0
    memory: int = 6 << 30


@final
@dataclass(frozen=True)
class Task:
    """One job of a sweep. Its report is named by all that it depends on."""

    place: int
    job: Job
    folder: Path
    repro: Path | None = None

    @property
    def known(self) -> bool:
        """Whether files tell what will be loaded, so that a saved report can be taken unseen."""
        return self._identity is not None

    @property
    def path(self) -> Path:
        """Where its report is kept."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", self.job.target)[:NAME].strip(".")
        return self.folder / f"{name}.{self.key}.json"

    @cached_property
    def key(self) -> str:
        """What makes two reports of a target the same: what is loaded, code, settings, probes."""
        job = self.job
        how = (job.target, str(job.home), vars(job.settings), job.probes, str(self.repro or ""))
        here = {name: value for name, value in environment().items() if name != "platform"}
        return digest((*how, *job.extent.options), here, self._identity, code_of(job))

    @cached_property
    def _identity(self) -> str | None:
        return identity(self.job)

    def forget(self) -> None:
        """Remove its report, so that another run checks the target again."""
        self.path.unlink(missing_ok=True)

    def changed(self) -> bool:
        """Whether what its name stands for has changed since its key was made."""
        return identity(self.job) != self._identity

    def saved(self) -> TargetReport | None:
        """Its whole report from an earlier run, if the scripts that it names are there too."""
        report = self.read()
        if report is None or report.incomplete:
            return None
        scripts = [each.replay.get("script") for _, each in report.findings]
        lost = any(each and not Path(each).is_file() for each in scripts)
        return None if lost else report.targets[0]

    def read(self) -> Report | None:
        """Its report so far, whole or not."""
        try:
            report = from_json(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return report if report.targets else None
