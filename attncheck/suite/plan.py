"""What a suite comes to: jobs to run one after the other, and what their outcome is held against.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, final

from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict

ProbeCall = tuple[str, Mapping[str, Any]]


@final
@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A failure that is known and accepted for a while. `where` is `FILE:LINE` of its entry."""

    probe: str = "*"
    case: str = "*"
    verdicts: frozenset[Verdict] = frozenset({Verdict.FAIL})
    reason: str
    link: str = ""
    expires: date | None = None
    where: str = ""

    def expired(self, today: date) -> bool:
        """Whether it holds no longer; the date itself is its last day."""
        return self.expires is not None and today > self.expires

    def covers(self, probe: str, case: str) -> bool:
        """Whether it speaks of this case of this probe."""
        return fnmatchcase(probe, self.probe) and fnmatchcase(case, self.case)


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """One model under one setting. `home` is the folder that probes given as `FILE.py:Class` are
    relative to.
    """

    target: str
    settings: Settings
    probes: tuple[ProbeCall, ...]
    expected: tuple[ExpectedFailure, ...] = ()
    tags: frozenset[str] = frozenset()
    home: Path = Path()
    where: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """A suite, expanded. Paths of reports and of the baseline are already relative to the suite's
    folder.
    """

    file: Path
    jobs: tuple[Job, ...]
    strict: bool = False
    fail_on: frozenset[Verdict] = frozenset()
    fail_fast: bool = False
    baseline: Path | None = None
    reports: tuple[tuple[str, Path], ...] = field(default_factory=tuple)
