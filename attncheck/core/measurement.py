"""What a probe measures: one frozen type for each kind of case. Standard library only.

A case says what was measured and what was expected, and never decides. `verdict_of` decides, and is
the only place that does, so that a saved report can be judged again without a model.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeVar, final

from attncheck.core.divergence import Divergence, PrecisionLevel, excess
from attncheck.core.errors import CallFailed, Unsupported
from attncheck.core.observed_part import ObservedPart
from attncheck.core.verdict import Verdict

BEYOND_ROUNDING = 1e3
"""Rounding explains no difference of this many budgets, where the budget is small against the
logits.
"""
RESOLUTION = 1e-3
"""A budget above this share of the logits' own scale could hide a fault."""
LOW_ONLY = 3.0
"""A difference that only a lower precision has is a fault of that precision beyond this many of its
budgets, once the budget holds the worst of many roundings; nearer ones are in doubt.
"""

CaseT = TypeVar("CaseT", bound="Measurement")
Expectation = Literal["equal", "differ", "at-most", "figure", "skip"]
Relation = Literal["equal", "differ", "figure"]
"""What two compared tensors must be; a `figure` is shown and not judged."""


@final
@dataclass(frozen=True)
class Cause:
    """The explanation that a case computed itself: the fault whose prediction its numbers
    reproduce, the largest deviation from that prediction, and the module. With `repaired` it is
    shown by repairing just that, and the residual is what is left of the difference. `parts` are
    the changes that it measured where no fault of the catalogue is meant.
    """

    fault: str = ""
    residual: float | None = None
    module: str = ""
    repaired: bool = False
    parts: tuple[ObservedPart, ...] = ()


@final
@dataclass(frozen=True)
class Rerun:
    """What a diagnosis runs again: the two forwards that were compared, and how the logits of the
    first were computed where that was no plain forward (`attncheck.model.provenance`).
    """

    got: Any
    want: Any
    provenance: Any = None


@dataclass(frozen=True)
class Measurement:
    """One case of a probe. `broken` is its verdict where the numbers are not as expected.
    `follows` is the probe that reports what the case follows from, if any.
    """

    name: str
    _: KW_ONLY
    broken: Verdict = Verdict.FAIL
    note: str = ""
    cause: Cause = Cause()
    rerun: Rerun | None = field(default=None, compare=False, repr=False)
    follows: str = field(default="", compare=False, repr=False)
    expect: Expectation = field(default="skip", init=False)

    @property
    def positions(self) -> int:
        """How much was measured; where it is 0 the case proves nothing."""
        return 0

    @property
    def nonfinite(self) -> int:
        """How many values were not finite."""
        return 0

    @property
    def max_abs(self) -> float | None:
        """The largest difference, where two tensors were compared."""
        return None

    @property
    def excess(self) -> float:
        """The amount as a multiple of what is allowed; infinite where something was not finite."""
        return 0.0

    @property
    def beyond(self) -> bool:
        """Whether the amount is larger than allowed. NaN always is."""
        return self.excess > 1.0

    @property
    def judged(self) -> bool:
        """Whether the case can fail: figures and skipped cases cannot."""
        return self.expect not in ("figure", "skip")

    @property
    def in_doubt(self) -> bool:
        """Whether another precision has to decide, because rounding could hide or explain it."""
        return False

    @property
    def resolved(self) -> bool:
        """Whether the budget is small enough that a fault would exceed it."""
        return True


@final
@dataclass(frozen=True)
class Comparison(Measurement):
    """Two tensors that must be `equal` within the budget, or must `differ` by more than it.

    `cuts` are the positions at which a new chunk was fed. A case of two levels has the numbers of
    the one that decides it: the higher, unless the difference is a fault of the lower alone.
    """

    divergence: Divergence
    budget: float
    budget_from: str = ""
    _: KW_ONLY
    expect: Relation = "equal"
    unit: str = ""
    cuts: tuple[int, ...] = ()
    ladder: tuple[PrecisionLevel, ...] = ()

    @property
    def positions(self) -> int:
        """How many positions were compared."""
        return self.divergence.positions

    @property
    def nonfinite(self) -> int:
        """How many values were not finite."""
        return self.divergence.nonfinite

    @property
    def max_abs(self) -> float:
        """The largest difference."""
        return self.divergence.max_abs

    @property
    def excess(self) -> float:
        """The largest difference as a multiple of the budget."""
        return math.inf if self.nonfinite else excess(self.max_abs, self.budget)

    @property
    def in_doubt(self) -> bool:
        """Whether another precision has to decide, because rounding could hide or explain it."""
        if not self.judged or self.nonfinite or not self.positions:
            return False
        if self.expect == "differ":
            return not self.beyond
        if not self.resolved:
            return self.max_abs != 0.0
        return 1.0 < self.excess <= BEYOND_ROUNDING

    @property
    def resolved(self) -> bool:
        """Whether the budget is below a thousandth of the reference's own scale."""
        scale = self.divergence.scale
        return scale is None or self.budget <= RESOLUTION * scale


@dataclass(frozen=True)
class Quantity(Measurement):
    """A single number in its unit: bytes, heads, layers, factors."""

    value: float
    unit: str = ""
    _: KW_ONLY
    positions: int = 1
    nonfinite: int = 0


@final
@dataclass(frozen=True)
class Figure(Quantity):
    """A number that is shown and not judged; `beside` are named numbers to show next to it."""

    _: KW_ONLY
    beside: tuple[tuple[str, float], ...] = ()
    expect: Literal["figure"] = field(default="figure", init=False)


@final
@dataclass(frozen=True)
class AtMost(Quantity):
    """A number that must be at most `limit`.

    `visible` draws the visible keys, a text for each query with a character for each key: `#` read
    as specified, `+` read although not specified, `-` specified but not read, `.` neither.
    """

    _: KW_ONLY
    limit: float = 0.0
    visible: tuple[str, ...] = ()
    expect: Literal["at-most"] = field(default="at-most", init=False)

    @property
    def excess(self) -> float:
        """The number as a multiple of the limit."""
        return math.inf if self.nonfinite else excess(self.value, self.limit)


@final
@dataclass(frozen=True)
class Skipped(Measurement):
    """A case that was not run; its note says why."""


@final
@dataclass(frozen=True)
class BrokenCall(Measurement):
    """A call that the model accepted and broke on: it raised, or its reply has the wrong shape. The
    note says how and where.
    """

    expect: Literal["at-most"] = field(default="at-most", init=False)

    @property
    def excess(self) -> float:
        """No amount is small enough."""
        return math.inf


def skipped(name: str, reason: str) -> Skipped:
    """A case that this model cannot run, with the reason."""
    return Skipped(name, note=reason)


def not_measured(name: str, reason: Unsupported) -> Measurement:
    """The case that a call leaves behind which the model does not support, or breaks on."""
    kind = BrokenCall if isinstance(reason, CallFailed) else Skipped
    return kind(name, note=str(reason))


def verdict_of(case: Measurement) -> Verdict:
    """The verdict of one case. Where nothing was measured it is `vacuous`; a value that is not
    finite always breaks the case.
    """
    if isinstance(case, Skipped):
        return Verdict.SKIP
    if isinstance(case, BrokenCall):
        return case.broken
    if case.positions == 0:
        return Verdict.VACUOUS
    if case.nonfinite:
        return case.broken
    if not isinstance(case, Comparison):
        return case.broken if case.beyond else Verdict.PASS
    return _by_levels(case) if case.ladder else _by_budget(case)


def _by_budget(case: Comparison) -> Verdict:
    if case.expect != "figure" and case.beyond != (case.expect == "differ"):
        return case.broken
    return Verdict.NOISE if case.expect == "equal" and case.in_doubt else Verdict.PASS


def _by_levels(case: Comparison) -> Verdict:
    """The verdict of the highest precision: rounding shrinks with it, a fault of meaning does not.
    A lower one adds a difference that rounding does not explain there: a failure where a repair
    shows its cause, or where it is large.
    """
    low, top = (excess(each.max_abs, each.budget) for each in (case.ladder[0], case.ladder[-1]))
    if case.expect == "differ":
        return Verdict.PASS if top > 1.0 else case.broken
    if top > 1.0 or (low > 1.0 and case.cause.fault) or low > LOW_ONLY:
        return case.broken
    return Verdict.NOISE if low > 1.0 else Verdict.PASS


def low_only(case: Measurement) -> bool:
    """Whether a lower precision alone has a difference, beyond its budget or not finite."""
    if not isinstance(case, Comparison) or not case.ladder or case.expect != "equal":
        return False
    low, top = case.ladder[0], case.ladder[-1]
    return excess(top.max_abs, top.budget) <= 1.0 and bool(
        case.nonfinite or excess(low.max_abs, low.budget) > 1.0
    )


def following(case: CaseT, probe: str, why: str = "") -> CaseT:
    """The case, with the probe that reports what it follows from, also in its note. It stays as
    broken as it is, but it neither names a fault nor speaks for its probe where another case fails.
    """
    cause = f"follows from `{probe}`" + (f" ({why})" if why else "")
    return replace(case, note="; ".join(filter(None, (case.note, cause))), follows=probe)
