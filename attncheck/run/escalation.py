"""Precision escalation: the highest precision that fits decides what a model means, and a lower one
adds only what is wrong because of it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from attncheck.core.choice import brief
from attncheck.core.divergence import PrecisionLevel
from attncheck.core.errors import CallFailed, Unsupported
from attncheck.core.measurement import (
    BEYOND_ROUNDING,
    BrokenCall,
    Cause,
    Comparison,
    Figure,
    Measurement,
    Skipped,
    not_measured,
    skipped,
    verdict_of,
)
from attncheck.core.ruling import describe
from attncheck.core.verdict import Verdict
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.probing.probe import promised
from attncheck.run.low_precision import explained
from attncheck.run.measuring import all_cases, settled

HALF = 2
"""Bytes of a dtype in which rounding can hide any fault."""


@final
@dataclass(frozen=True)
class Decision:
    """The cases of a probe, the dtype that decided them or some of them, and the one that controls
    run in; None for the subject's own.
    """

    cases: tuple[Measurement, ...]
    dtype: str | None = None
    controls: str | None = None


def decided(subject: Subject, probe: Probe) -> Decision:
    """Measure, and again in the highest precision that fits where rounding could hide or make a
    fault.

    Raises:
        Unsupported: the probe has no case on this model.
    """
    measured, refused = _tried(subject, probe)
    measured = settled(subject, probe, measured)
    names = None if refused is not None else _asked_higher(subject, probe, measured)
    dtype = None if names == frozenset() else subject.higher_dtype()
    if dtype is not None:
        try:
            with subject.at(dtype) as view:
                higher, absent = _tried(view, probe, names)
        except REFUSALS:  # a kernel refuses it, so that nothing decides
            dtype = None
    if dtype is None or (refused is not None and absent is not None):
        if refused is not None:
            raise refused
        return Decision(measured)
    why = str(absent or f"no case in {dtype}, which decides")
    dtypes = (subject.dtype_name, dtype)
    joined = (
        _joined(measured, higher, dtypes, why)
        if names is None
        else _joined_part(measured, higher, dtypes, why, names)
    )
    sure = names is not None and not any(map(_unsure, measured))
    return Decision(explained(subject, probe, joined), dtype, None if sure else dtype)


def _unsure(case: Measurement) -> bool:
    """Whether rounding alone may have broken a case, and so may hide what a fault does."""
    return case.in_doubt or verdict_of(case) in (Verdict.FAIL, Verdict.NOISE)


def _tried(
    subject: Subject, probe: Probe, names: frozenset[str] | None = None
) -> tuple[tuple[Measurement, ...], Unsupported | None]:
    """All cases, or those of these names; or none, and why there is none. A call that breaks is a
    case.
    """
    try:
        return all_cases(probe, subject, names), None
    except CallFailed as reason:
        return (not_measured(probe.title, reason),), None
    except Unsupported as reason:
        return (), reason


def _asked_higher(
    subject: Subject, probe: Probe, measured: tuple[Measurement, ...]
) -> frozenset[str] | None:
    """The names of the cases that the highest precision decides; None for all of them.

    All in half precision, and all that a config states, unless the run is brief; otherwise those
    that are broken or in doubt. A warning by more than any rounding is neither, unless a router
    between two equal experts breaks one by any number of budgets.
    """
    states = not brief()
    if subject.dtype.itemsize <= HALF or (states and getattr(probe, "promise", False) is True):
        return None
    fine = (Verdict.PASS, Verdict.SKIP)
    return frozenset(
        case.name
        for case in measured
        if case.in_doubt
        or not (verdict_of(case) in fine or _plain_warning(subject, case))
        or (states and promised(probe, case.name))
    )


def _plain_warning(subject: Subject, case: Measurement) -> bool:
    """Whether a case warns, and no rounding of this model makes such a difference."""
    if verdict_of(case) is not Verdict.WARN or not isinstance(case, Comparison):
        return False
    far = case.resolved and case.excess > BEYOND_ROUNDING and not case.nonfinite
    return far and bool(subject.can.is_smooth)


def _joined(
    measured: tuple[Measurement, ...],
    higher: tuple[Measurement, ...],
    dtypes: tuple[str, str],
    absent: str,
) -> list[Measurement]:
    """Each case once, in the order of the higher precision; then what only the lower one breaks."""
    lower = {case.name: case for case in measured}
    names = {case.name for case in higher}
    joined = [
        _by_both(lower[case.name], case, *dtypes) if case.name in lower else case for case in higher
    ]
    alone = (case for case in measured if case.name not in names)
    found = (_by_both(case, skipped(case.name, absent), *dtypes) for case in alone)
    within = (Verdict.PASS, Verdict.NOISE)
    return joined + [case for case in found if verdict_of(case) not in within]


def _joined_part(
    measured: tuple[Measurement, ...],
    higher: tuple[Measurement, ...],
    dtypes: tuple[str, str],
    absent: str,
    asked: frozenset[str],
) -> list[Measurement]:
    """`_joined` for the cases that were asked there; the others stay where they are."""
    names = {case.name for case in measured} - asked
    part = tuple(case for case in measured if case.name in asked)
    found = tuple(case for case in higher if case.name not in names)
    decided = {case.name: case for case in _joined(part, found, dtypes, absent)}
    kept = [
        decided.pop(case.name, case)
        for case in measured
        if case.name in names or case.name in decided
    ]
    return [*kept, *decided.values()]


def _by_both(lower: Measurement, higher: Measurement, low: str, high: str) -> Measurement:
    if isinstance(higher, BrokenCall):
        return lower  # a kernel refuses the higher precision, or the call breaks in both
    if isinstance(lower, Skipped) or isinstance(higher, Figure):
        return higher
    if isinstance(lower, BrokenCall):
        runs = not isinstance(higher, Skipped)
        return replace(lower, note=f"{lower.note}; {high} runs") if runs else lower
    if isinstance(higher, Skipped):
        return _undecided(lower, higher, low)
    if not (isinstance(lower, Comparison) and isinstance(higher, Comparison)):
        return _counted(lower, higher, low)
    if higher.expect == "figure":
        return higher
    return _with_levels(lower, higher, low, high)


def _undecided(lower: Measurement, higher: Skipped, low: str) -> Measurement:
    """A case that the higher precision does not have. What is broken in the lower one is no
    finding, unless by more than any rounding.
    """
    if verdict_of(lower) not in (Verdict.FAIL, Verdict.WARN, Verdict.VACUOUS):
        return lower
    if isinstance(lower, Comparison) and lower.resolved and lower.excess > BEYOND_ROUNDING:
        return lower
    return skipped(lower.name, f"{higher.note} ({low}, which does not decide: {describe(lower)})")


def _counted(lower: Measurement, higher: Measurement, low: str) -> Measurement:
    """What is no comparison: the higher precision counts, and the lower one what is not finite."""
    if lower.nonfinite and not higher.nonfinite:
        return lower
    if verdict_of(lower) is verdict_of(higher):
        return higher
    note = f"{low}: {describe(lower)}"
    return replace(higher, note=f"{higher.note}; {note}" if higher.note else note)


def _with_levels(lower: Comparison, higher: Comparison, low: str, high: str) -> Comparison:
    """The case of the level that decides, with the numbers of both: the higher one, unless it
    agrees and the lower one differs by more than rounding there.
    """
    levels = tuple(
        PrecisionLevel(dtype=dtype, max_abs=each.max_abs, budget=each.budget)
        for dtype, each in ((low, lower), (high, higher))
    )
    if higher.expect == "equal" and lower.beyond and not higher.beyond and higher.positions:
        return replace(lower, ladder=levels, cause=Cause(), note=higher.note, broken=higher.broken)
    return replace(higher, ladder=levels)
