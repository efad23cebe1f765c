"""A failing case taken apart: its two passes, what was observed, what the trusted path gives, and
which side is wrong.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.core.finding import (
    Comparison,
    Divergence,
    Finding,
    Measurement,
    Rerun,
    Verdict,
    verdict_of,
)
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.passes import REFUSALS
from attncheck.model.provenance import AFTER, Provenance
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond_at

REFUSED = (Unsupported, *REFUSALS)
"""What a call that the model does not support, or a broken model, may raise."""
FEW_CHUNKS = 6
LONG = 64
USUAL = ("", "dynamic")
SHORT = 2


@final
@dataclass(frozen=True)
class FailureSide:
    """One of the two passes of a failing case, with what was observed and what the trusted path
    gives.

    Where `made` is given, the observed logits are not those of the pass itself: they are
    observed_BNV, at its columns.
    """

    spec: ForwardSpec
    observed_BTV: Tensor
    trusted_BTV: Tensor | None
    budget: float
    made: Provenance | None = None

    @property
    def wrong(self) -> bool:
        """Whether the trusted path gives something else."""
        return self.trusted_BTV is None or self.apart(self.trusted_BTV) > self.budget

    def apart(self, predicted_BTV: Tensor) -> float:
        """The largest difference between a prediction and what was observed, at real tokens;
        infinite where one is not finite.
        """
        return max_diff_at(self.kept(predicted_BTV), self.observed_BTV, self.real)

    def kept(self, logits_BTV: Tensor) -> Tensor:
        """The columns of a whole pass that belong to what was observed."""
        return logits_BTV if self.columns is None else logits_BTV[:, list(self.columns)]

    def agrees(self, predicted_BTV: Tensor) -> int:
        """How many positions, from the first one on, a prediction gives exactly."""
        kept_BTV = self.kept(predicted_BTV)
        if kept_BTV.shape != self.observed_BTV.shape:
            return 0
        wrong_BT = beyond_at(kept_BTV, self.observed_BTV, self.budget, -1)
        wrong_T = (wrong_BT if self.real is None else wrong_BT & self.real.to(wrong_BT.device)).any(
            0
        )
        return int(wrong_T.long().argmax()) if bool(wrong_T.any()) else wrong_T.numel()

    @property
    def columns(self) -> tuple[int, ...] | None:
        """Which positions of the pass were observed; None for all."""
        return self.made.columns if self.made is not None else None

    @property
    def real(self) -> Tensor | None:
        """(B, T) booleans of what was observed at tokens that are not padding, or None where all
        are real.
        """
        real_BT = real_tokens(self.spec)
        return (
            real_BT if real_BT is None or self.columns is None else real_BT[:, list(self.columns)]
        )

    def run(self, subject: Subject) -> None:
        """Run what was observed once more, for what hooks see of it."""
        if self.made is not None:
            self.made.again(subject)
        else:
            subject.passes.replay(self.spec)


@final
@dataclass(frozen=True)
class Failure:
    """One failing case. `sides` are (got, want)."""

    case: Measurement
    trusted: Trusted
    sides: tuple[FailureSide, FailureSide]

    @property
    def subject(self) -> Subject:
        """The model under test."""
        return self.trusted.subject

    @property
    def wrong(self) -> tuple[FailureSide, ...]:
        """The sides that the trusted path does not give, without repeats."""
        found = [side for side in self.sides if side.wrong]
        same = len(found) == 2 and found[0].spec == found[1].spec and found[0].made is None
        return tuple(found[:1] if same else found)

    @property
    def budget(self) -> float:
        """How far rounding moves these logits."""
        return self.sides[0].budget

    def differ(self, left_BTV: Tensor, right_BTV: Tensor, real_BT: Tensor | None = None) -> bool:
        """Whether two logits differ beyond the budget, at real tokens."""
        return max_diff_at(left_BTV, right_BTV, real_BT) > self.budget


def real_tokens(spec: ForwardSpec) -> Tensor | None:
    """(B, T) booleans of the tokens that are not padding, or None where all are real."""
    return torch.tensor(spec.mask.rows, dtype=torch.bool) if isinstance(spec.mask, Mask2D) else None


def max_diff_at(left_BTV: Tensor, right_BTV: Tensor, rows_BT: Tensor | None = None) -> float:
    """Largest absolute difference over some rows; values that are not finite must be so on both
    sides.
    """
    if left_BTV.shape != right_BTV.shape:
        return math.inf
    if rows_BT is not None:
        rows_BT = rows_BT.to(left_BTV.device)
        left_BTV, right_BTV = left_BTV[rows_BT], right_BTV[rows_BT]
    finite = torch.isfinite(left_BTV)
    if not torch.equal(finite, torch.isfinite(right_BTV)):
        return math.inf
    delta = (left_BTV.double() - right_BTV.double()).abs()[finite]
    return float(delta.max()) if delta.numel() else 0.0


def failing(finding: Finding) -> list[Measurement]:
    """The failing cases that carry their passes, the most telling first: no padding, a few uneven
    chunks, no long row.
    """
    found = [
        case
        for case in finding.cases
        if case.rerun is not None and verdict_of(case) is Verdict.FAIL
    ]
    return sorted(found, key=_telling)


def _telling(case: Measurement) -> tuple[bool, bool, bool, bool, int, float]:
    spec: ForwardSpec = case.rerun.got if case.rerun else ForwardSpec(())
    several = len(spec.chunks) > 2 and any(size > 1 for size in spec.chunks[1:])
    plain = not several if spec.chunks else bool(case.rerun and case.rerun.provenance)
    length = spec.length // LONG if spec.tokens else 0
    return (
        padded(spec),
        spec.cache_kind not in USUAL,
        plain,
        len(spec.chunks) > FEW_CHUNKS,
        length,
        -case.excess,
    )


def unmeasured(name: str, got: ForwardSpec, want: ForwardSpec) -> Comparison:
    """A case of two forwards that were not compared yet."""
    return Comparison(name, Divergence(max_abs=0.0, positions=0), 0.0, rerun=Rerun(got, want))


def padded(spec: ForwardSpec) -> bool:
    """Whether a 2D mask hides something."""
    return isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows)


def open_case(subject: Subject, case: Measurement, by_arguments: bool = False) -> Failure:
    """Run both passes of a case again and beside them the trusted path, by the config's masks or
    else by the model's own.

    `by_arguments` leaves attention to the model: what is wrong with it is then wrong on the trusted
    path too.

    Raises:
        Unsupported: a pass cannot be asked again.
    """
    budget = max(subject.budget.value, case.budget if isinstance(case, Comparison) else 0.0)
    promised = _opened(Trusted(subject, by_arguments=by_arguments), case, budget)
    if by_arguments or not promised.sides[1].wrong:
        return promised
    return min(
        promised,
        _opened(Trusted(subject, own_masks=True), case, budget),
        key=lambda failure: len(failure.wrong),
    )


def _opened(trusted: Trusted, case: Measurement, budget: float) -> Failure:
    assert case.rerun is not None
    got, want, made = case.rerun.got, case.rerun.want, case.rerun.provenance
    first = _side(trusted, got, budget, made)
    if made is not None and made.how == AFTER:
        trusted.subject.passes.drop(
            want
        )  # what is remembered of it is the answer after the other call
    return Failure(case, trusted, (first, _side(trusted, want, budget)))


def _side(
    trusted: Trusted, spec: ForwardSpec, budget: float, made: Provenance | None = None
) -> FailureSide:
    reset_buffers(trusted)
    try:
        given: Tensor | None = trusted.logits(spec)
    except Unsupported:
        given = None
    observed = made.again(trusted.subject) if made is not None else trusted.subject.logits(spec)
    return FailureSide(spec, observed, given, budget, made)


def reset_buffers(trusted: Trusted) -> None:
    """A short call: what is kept on modules from call to call (a rotary table of the longest one)
    starts anew with it.
    """
    _ = trusted.out_of_reach, trusted.subject.can.mask_4d  # asked once, by forwards of their own
    with torch.no_grad():
        trusted.subject.passes.call((trusted.subject.inputs.row[:SHORT],), use_cache=False)
