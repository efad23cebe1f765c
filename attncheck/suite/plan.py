"""What a run consists of: the jobs, and how their outcome counts. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, final

from attncheck.core.extent import WHOLE, RunExtent
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict

ProbeCall = tuple[str, Mapping[str, Any]]


@final
@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A known failure that is accepted for a while. `where` is `FILE:LINE` of its entry."""

    probe: str = "*"
    case: str = "*"
    verdicts: frozenset[Verdict] = frozenset({Verdict.FAIL})
    reason: str
    link: str = ""
    expires: date | None = None
    where: str = ""

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return self.expires is not None and today > self.expires

    def covers(self, probe: str, case: str) -> bool:
        """Whether it applies to this case of this probe."""
        return fnmatchcase(probe, self.probe) and fnmatchcase(case, self.case)


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """One model under one setting. Paths of probes (`FILE.py:Class`) are relative to `home`;
    `place` is as in a report.
    """

    target: str
    settings: Settings
    probes: tuple[ProbeCall, ...]
    expected: tuple[ExpectedFailure, ...] = ()
    tags: frozenset[str] = frozenset()
    home: Path = Path()
    where: str = ""
    place: int = 0
    extent: RunExtent = WHOLE


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """The part of a suite that a command line selects: `!tag` excludes a tag; probes are globs."""

    tags: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def keeps(self, tags: frozenset[str], probe: str) -> bool:
        """Whether a probe on a model runs; `tags` are those of both."""
        excluded = {tag[1:] for tag in self.tags if tag.startswith("!")}
        wanted = {tag for tag in self.tags if not tag.startswith("!")}
        tagged = not tags & excluded and (not wanted or bool(tags & wanted))
        named = not self.probes or matches_any(self.probes, probe)
        return tagged and named and not matches_any(self.skip, probe)


def matching(glob: str, names: Iterable[str]) -> list[str]:
    """The names that a glob matches."""
    return [name for name in names if fnmatchcase(name, glob)]


def matches_any(globs: Iterable[str], name: str) -> bool:
    """Whether one of the globs matches a name."""
    return any(fnmatchcase(name, glob) for glob in globs)


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The jobs of a run. Paths are resolved against the folder of the suite."""

    file: Path
    jobs: tuple[Job, ...]
    strict: bool = False
    fail_on: frozenset[str] = frozenset()
    fail_fast: bool = False
    baseline: Path | None = None
    shard: str | None = None
    quick: bool = False
    budget: str | None = None
    reports: tuple[tuple[str, Path], ...] = field(default_factory=tuple)
