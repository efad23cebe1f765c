"""The question that triage gets and the answer that it gives, as data. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import final

from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.verdict import Verdict
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.issue import Issue

OWN = "the reporter's own call"
UNUSUAL = "not wrong by anything stated here, but unusual"
"""The title of a remark about what no config and no call explains."""


class TriageAnswer(str, Enum):
    """The four answers to a report."""

    CONFIRMED = "CONFIRMED"
    NOT_REPRODUCED = "NOT REPRODUCED"
    NUMERICS = "EXPECTED NUMERICS"
    BEHAVIOUR = "EXPECTED BEHAVIOUR"

    def __str__(self) -> str:
        return self.value

    @property
    def exit_code(self) -> int:
        """1 for a fault, otherwise 0."""
        return 1 if self is TriageAnswer.CONFIRMED else 0


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """What a report states: prompts, generated tokens, symptom, and how the model was called.

    `beams` is the width of the beam search, `chat` whether prompts go through the chat template,
    `sampled` whether the report's call samples, `difference` the logit difference that it states (0
    where its tokens change), `issue` what was read out of its text. `passes` limits the number of
    forwards of the search; 0 chooses it by the model's size.
    """

    prompts: tuple[str, ...] = ()
    generate: int = 0
    beams: int = 1
    chat: bool = False
    sampled: bool = False
    difference: float = 0.0
    symptom: str = ""
    pattern: CallPattern = field(default_factory=CallPattern)
    passes: int = 400
    issue: Issue = field(default_factory=Issue)

    @property
    def singly(self) -> bool:
        """Whether the prompts are those of an issue whose code calls the model on each alone."""
        return self.issue.singly and self.prompts == self.issue.prompts


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that was tried, its verdict and its result in words."""

    name: str
    verdict: Verdict
    words: str


@final
@dataclass(frozen=True, kw_only=True)
class Remark:
    """An observation that explains what people see without any fault.

    One that `decides` answers the report by itself, a `late` one where rounding does not; others
    are only mentioned.
    """

    title: str
    words: str
    decides: bool = False
    late: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class PrecisionLine:
    """The worst call pattern in one precision."""

    dtype: str
    way: str
    max_abs: float
    budget: float
    flips: int
    positions: int


@final
@dataclass(frozen=True, kw_only=True)
class GreedySplit:
    """Where greedy text and a forward over it first choose another token, and by what margin."""

    position: int
    chosen: str
    other: str
    margin: float
    difference: float
    flips: int
    tokens: int

    @property
    def explained(self) -> bool:
        """Whether rounding explains it: the margin is below twice the difference of the logits."""
        return self.margin <= 2 * self.difference


@final
@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest call that still fails. None where an axis could not be made smaller.

    `right` are call patterns that give other logits and in which every layer computes what the
    config says.
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
    """The answer and its evidence.

    `told` is what was read out of an issue's text, `called` what was run as the reporter's own
    call, `second` another fault beside the first, `stopped` the exit code where the search was
    interrupted, so that this is its best guess.
    """

    target: str
    answer: TriageAnswer
    headline: str
    advice: str = ""
    told: tuple[tuple[str, str], ...] = ()
    called: str = ""
    finding: Finding | None = None
    second: Finding | None = None
    stopped: int = 0
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
        """The fault."""
        return self.finding.diagnosis if self.finding else None

    @property
    def location(self) -> Location | None:
        """The first diverging module."""
        return self.finding.location if self.finding else None
