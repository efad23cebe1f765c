"""What a session tells of a target, beside what its probes tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from attncheck.report.model import TargetReport


@final
@dataclass(frozen=True)
class TargetStarted:
    """A target is about to be loaded."""

    target: str


@final
@dataclass(frozen=True)
class TargetLoaded:
    """A target is loaded: the report of it so far, without findings."""

    target: TargetReport


@final
@dataclass(frozen=True)
class TargetFinished:
    """All probes of a target ran, or it could not be loaded."""

    target: TargetReport
