"""What a probe says about a model: cases, controls, diagnosis, finding. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.observed_part import ObservedPart
from attncheck.core.verdict import Verdict

DECIDED_IN = "decided_in"
"""What a replay calls the dtype that decided, where that is not the one that was asked for."""


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """A probe run again with an injected fault: did it notice?"""

    fault: str
    detected: bool
    max_abs: float | None = None
    case: str = ""


Proof = Literal["reproduced", "measured", "repaired", "unexplained"]
"""How much a diagnosis says about the cause, most first."""


@final
@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Which fault reproduces a failure, what was measured to differ, or which repair heals it.

    `sentence` and `parts` say what was measured; `family` is the nearest fault of the catalogue
    where none has these logits.
    """

    fault: str
    how: Proof
    residual: float | None = None
    runner_up: Mapping[str, Any] | None = None
    advice: str = ""
    ruled_out: tuple[str, ...] = ()
    sentence: str = ""
    family: str = ""
    parts: tuple[ObservedPart, ...] = ()

    @property
    def name(self) -> str:
        """The fault, or what it is nearest to where the catalogue has no name for it."""
        return self.fault or (f"like {self.family}" if self.family else "a fault without a name")


@final
@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a failure first shows. `layers` is the largest difference of the hidden states after
    each layer; `source` is the file and line of the code that computes it.
    """

    module: str
    layer: int | None = None
    query_position: int | None = None
    source_position: int | None = None
    note: str = ""
    layers: tuple[float, ...] = ()
    source: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one probe measured on one model, with what is needed to measure it again."""

    measurements: tuple[Measurement, ...]
    replay: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Ruling:
    """A verdict and the sentence that explains it."""

    verdict: Verdict
    summary: str


@final
@dataclass(frozen=True, kw_only=True)
class KnownFinding:
    """Why a finding does not count towards the exit code: a suite expects it, or it is in the
    baseline.
    """

    by: Literal["suite", "baseline"]
    reason: str = ""
    link: str = ""
    expires: str = ""

    def __str__(self) -> str:
        if self.by == "baseline":
            return "in the baseline"
        until = f", until {self.expires}" if self.expires else ""
        return f"expected: {self.reason}{until}{' ' + self.link if self.link else ''}"


@final
@dataclass(frozen=True, kw_only=True)
class Trap:
    """A case that would warn, and that a reference model does as well under this library version.

    `call` is the case, `max_abs` the number of the reference, `advice` what the case says of it.
    """

    trap: str
    call: str
    reference: str
    max_abs: float | None = None
    advice: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """Everything one probe has to say about one model. `as_dict` is the JSON of the contract.

    `shared_by` is a reference model of the library that has each failing case as well; `left` are
    the questions that a run with `--quick` or `--budget` did not ask.
    """

    probe: str
    verdict: Verdict
    seconds: float = 0.0
    summary: str = ""
    cases: tuple[Measurement, ...] = ()
    controls: tuple[Control, ...] = ()
    controls_missing: str = ""
    diagnosis: Diagnosis | None = None
    location: Location | None = None
    skip_reason: str | None = None
    error: str | None = None
    replay: Mapping[str, Any] = field(default_factory=dict)
    known: KnownFinding | None = None
    traps: tuple[Trap, ...] = ()
    shared_by: str = ""
    left: tuple[str, ...] = ()

    @property
    def broken(self) -> list[Measurement]:
        """The cases that ran and did not pass."""
        passing = (Verdict.PASS, Verdict.SKIP)
        return [case for case in self.cases if verdict_of(case) not in passing]

    @property
    def advice(self) -> list[str]:
        """What the diagnosis advises, if there is one."""
        found = self.diagnosis
        return [f"{found.fault}: {found.advice}"] if found is not None else []

    def with_verdict(self, verdict: Verdict, summary: str) -> Finding:
        """The same finding with another verdict and sentence."""
        return replace(self, verdict=verdict, summary=summary)


def skipped_finding(probe: str, reason: str) -> Finding:
    """A probe that did not apply to this model, with the reason."""
    return Finding(probe=probe, verdict=Verdict.SKIP, summary=reason, skip_reason=reason)
