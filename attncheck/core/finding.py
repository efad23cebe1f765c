"""The words a probe speaks: verdict, measurement, evidence, ruling, finding. Standard library only.

A measurement is one comparison with its budget; it says what was expected and never decides.
`verdict_of` decides, and is the only place that does, so that a saved report can be judged again
without a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from attncheck.core.verdict import Verdict as Verdict
from attncheck.core.verdict import worst as worst
from attncheck.core.verdict import worst_of_model as worst_of_model

BEYOND_ROUNDING = 1e3
"""A difference of this many budgets is no rounding in any precision, where the budget is small
beside the logits.
"""

Expectation = Literal["equal", "differ", "at-most", "figure", "skip"]


@final
@dataclass(frozen=True, kw_only=True)
class PrecisionLevel:
    """One step of the precision ladder: the same case measured in another dtype."""

    dtype: str
    max_abs: float
    budget: float


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case: what was compared, how far apart it is, and how far rounding alone could carry it.

    `equal` holds when `max_abs <= budget`, `differ` when it is larger, `at-most` when `value <=
    limit` (bytes, factors), a `figure` is only shown, and a `skip` says in its note why nothing was
    compared. `broken` is the verdict when the expectation does not hold.

    `profile` is the largest divergence in each stretch of `stride` positions from `start` on, kept
    where one is above the budget; `cuts` are the positions at which a new chunk was fed. `reach`
    draws who reads whom, a text for each query with a character for each key: `#` read as promised,
    `+` read and not promised, `-` promised and not read, `.` neither. `beside` are figures to be
    shown next to `value`, by name.

    `spec` holds the two passes (got, want) that a diagnosis can run again, and `made` how the first
    one's logits were made where that was no plain pass (`attncheck.model.provenance`); both stay in
    memory and are not part of a report. `fault` names the fault that this case's own numbers
    reproduce, where the probe itself computed the prediction (a fitted scale, a map of heads, a
    loss shifted twice), with the largest deviation from that prediction in `fault_residual` and the
    module in `module`.
    """

    name: str
    expect: Expectation = "equal"
    broken: Verdict = Verdict.FAIL
    max_abs: float | None = None
    mean_abs: float | None = None
    kl: float | None = None
    top1_flips: int | None = None
    positions: int = 0
    first_position: int | None = None
    budget: float | None = None
    budget_from: str = ""
    scale: float | None = None
    nonfinite: int = 0
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    note: str = ""
    ladder: tuple[PrecisionLevel, ...] = ()
    profile: tuple[float, ...] = ()
    start: int = 0
    stride: int = 1
    cuts: tuple[int, ...] = ()
    reach: tuple[str, ...] = ()
    beside: tuple[tuple[str, float], ...] = ()
    fault: str = ""
    fault_residual: float | None = None
    module: str = ""
    spec: tuple[Any, Any] | None = field(default=None, compare=False, repr=False)
    made: Any = field(default=None, compare=False, repr=False)

    @property
    def excess(self) -> float:
        """How many budgets the divergence is; infinite where something was not finite."""
        if self.nonfinite:
            return math.inf
        amount, allowed = (
            (self.value, self.limit) if self.expect == "at-most" else (self.max_abs, self.budget)
        )
        return (amount or 0.0) / allowed if allowed else (math.inf if amount else 0.0)

    @property
    def judged(self) -> bool:
        """Whether the case can fail at all: figures and skipped cases cannot."""
        return self.expect not in ("figure", "skip")

    @property
    def in_doubt(self) -> bool:
        """Whether another precision has to decide: rounding could hide a fault here, or could have
        made this difference.
        """
        if self.expect not in ("equal", "differ") or self.nonfinite or not self.positions:
            return False
        if self.expect == "differ":
            return self.excess <= 1.0
        if not self.resolved:
            return self.max_abs != 0.0
        return 1.0 < self.excess <= BEYOND_ROUNDING

    @property
    def resolved(self) -> bool:
        """Whether a fault would stand out of this budget: it is below a thousandth of the logits'
        own scale.
        """
        if self.budget is None or self.scale is None:
            return True
        return self.budget <= 1e-3 * self.scale


def _holds(measurement: Measurement) -> bool:
    if measurement.expect == "figure":
        return True
    if measurement.expect == "at-most":
        return measurement.excess <= 1.0
    return (measurement.excess <= 1.0) == (measurement.expect == "equal")


def verdict_of(measurement: Measurement) -> Verdict:
    """The verdict of one case. Nothing compared is `vacuous`; a value that is not finite always
    breaks the case.
    """
    if measurement.expect == "skip":
        return Verdict.SKIP
    if measurement.positions == 0:
        return Verdict.VACUOUS
    if measurement.nonfinite:
        return measurement.broken
    holds = _holds(measurement)
    if not measurement.ladder:
        doubtful = holds and measurement.expect == "equal" and measurement.in_doubt
        return Verdict.NOISE if doubtful else Verdict.PASS if holds else measurement.broken
    top = measurement.ladder[-1]
    if measurement.expect == "differ":
        return Verdict.PASS if top.max_abs > top.budget else measurement.broken
    return Verdict.NOISE if top.max_abs <= top.budget else measurement.broken


def merged(name: str, cases: Iterable[Measurement]) -> Measurement:
    """Several comparisons as one case: the worst one's numbers, with everything that was compared
    or not finite counted.

    Raises:
        ValueError: there is nothing to merge.
    """
    found = list(cases)
    if not found:
        raise ValueError(f"case `{name}` merges nothing")
    worst_case = max(found, key=lambda case: case.excess)
    return replace(
        worst_case,
        name=name,
        positions=sum(case.positions for case in found)
        if all(case.positions for case in found)
        else 0,
        nonfinite=sum(case.nonfinite for case in found),
        top1_flips=sum(case.top1_flips or 0 for case in found),
    )


def skipped(name: str, reason: str) -> Measurement:
    """A case that this model cannot be asked, with the reason."""
    return Measurement(name=name, expect="skip", note=reason)


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """A probe run again with a fault planted: did it notice?"""

    fault: str
    detected: bool
    max_abs: float | None = None
    case: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Which fault reproduces a failure, or which repair heals it."""

    fault: str
    how: Literal["reproduced", "repaired", "unexplained"]
    residual: float | None = None
    runner_up: Mapping[str, Any] | None = None
    advice: str = ""
    ruled_out: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a failure first shows. `layers` is the largest difference of the hidden states after
    each layer.
    """

    module: str
    layer: int | None = None
    query_position: int | None = None
    source_position: int | None = None
    note: str = ""
    layers: tuple[float, ...] = ()


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
class Known:
    """Why a finding does not count towards the exit code: a suite expects it, or a baseline holds
    it.
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
class Finding:
    """Everything one probe has to say about one model. `as_dict` is the JSON of the contract."""

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
    known: Known | None = None

    def with_verdict(self, verdict: Verdict, summary: str) -> Finding:
        """The same finding with another verdict and sentence."""
        return replace(self, verdict=verdict, summary=summary)
