"""What triage is asked and what it answers, as data. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import final

from attncheck.core.finding import Diagnosis, Finding, Location, Verdict
from attncheck.triage.call_pattern import CallPattern


class TriageAnswer(str, Enum):
    """What a report comes to."""

    CONFIRMED = "CONFIRMED"
    NOT_REPRODUCED = "NOT REPRODUCED"
    NUMERICS = "EXPECTED NUMERICS"
    BEHAVIOUR = "EXPECTED BEHAVIOUR"

    def __str__(self) -> str:
        return self.value

    @property
    def exit_code(self) -> int:
        """1 for a fault, 0 for everything that is as it should be."""
        return 1 if self is TriageAnswer.CONFIRMED else 0


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """What the reporter has: prompts, how many tokens they generate, what they saw, and how they
    ask.

    `pattern` is how they ask, `dtype` in which precision (empty: the checkpoint's own). `passes`
    bounds the search.
    """

    prompts: tuple[str, ...] = ()
    generate: int = 0
    symptom: str = ""
    pattern: CallPattern = field(default_factory=CallPattern)
    dtype: str = ""
    compiled: bool = False
    passes: int = 400


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that was tried: what, what came out, and the verdict where it has one."""

    name: str
    verdict: Verdict
    words: str
    seconds: float = 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Remark:
    """Something read off the model or measured that explains what people see without any fault.

    `decides` says that it answers the report by itself; else it is only mentioned.
    """

    title: str
    words: str
    decides: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class PrecisionLine:
    """One precision of the ladder: the worst way of asking in it."""

    dtype: str
    way: str
    max_abs: float
    budget: float
    flips: int
    positions: int


@final
@dataclass(frozen=True, kw_only=True)
class GreedySplit:
    """Where a greedy text and a forward over it first choose another token: how near the two best
    were.
    """

    position: int
    chosen: str
    other: str
    margin: float
    difference: float
    flips: int
    tokens: int

    @property
    def explained(self) -> bool:
        """Whether rounding can turn it: the two best are nearer than twice what the logits differ
        by.
        """
        return self.margin <= 2 * self.difference


@final
@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest way of asking that still fails. None where an axis could not be made smaller.

    `right` are ways of asking that give something else, and keep the promise in every layer.
    """

    words: str
    tokens: int | None = None
    layers: int | None = None
    passes: int = 0
    spent: bool = False
    right: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Triage:
    """The answer with everything behind it."""

    target: str
    question: Question
    answer: TriageAnswer
    headline: str
    advice: str = ""
    finding: Finding | None = None
    smallest: Smallest | None = None
    steps: tuple[Step, ...] = ()
    remarks: tuple[Remark, ...] = ()
    lines: tuple[PrecisionLine, ...] = ()
    split: GreedySplit | None = None
    read: tuple[tuple[str, str], ...] = ()
    falsifier: str = ""
    script: str = ""
    no_script: str = ""
    command: str = ""
    seconds: float = 0.0

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Which fault it is."""
        return self.finding.diagnosis if self.finding else None

    @property
    def location(self) -> Location | None:
        """Where it starts."""
        return self.finding.location if self.finding else None
