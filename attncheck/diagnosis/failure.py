"""A failing case with its two forwards: the observed logits, the trusted path's, and who is wrong.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.core.divergence import Divergence
from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding
from attncheck.core.measurement import Comparison, Measurement, Rerun, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.kept_state import model_untouched
from attncheck.model.provenance import AFTER, Provenance
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond_at, max_abs_diff
from attncheck.observation.sequence import Sequence

REFUSED = (Unsupported, *REFUSALS)
"""What a call that the model does not support, or a broken model, may raise."""
FEW_CHUNKS = 6
LONG = 64
USUAL = ("", "dynamic")
SHORT = 2


@final
@dataclass(frozen=True)
class FailureSide:
    """One forward of a failing case, with its observed logits and those of the trusted path.

    With a `provenance` the observed logits were made in another way: they are observed_BNV, at the
    columns of the forward that it names.
    """

    spec: ForwardSpec
    observed_BTV: Tensor
    trusted_BTV: Tensor | None
    budget: float
    provenance: Provenance | None = None

    @property
    def wrong(self) -> bool:
        """Whether the trusted path gives other logits."""
        return self.trusted_BTV is None or self.residual_of(self.trusted_BTV) > self.budget

    def residual_of(self, predicted_BTV: Tensor) -> float:
        """The largest difference of a prediction from the observed logits, at real tokens."""
        return max_diff_at(self.kept(predicted_BTV), self.observed_BTV, self.real)

    def kept(self, logits_BTV: Tensor) -> Tensor:
        """The columns of a whole forward that were observed."""
        return logits_BTV if self.columns is None else logits_BTV[:, list(self.columns)]

    def agrees(self, predicted_BTV: Tensor) -> int:
        """How many positions, from the first one on, a prediction gives exactly."""
        kept_BTV = self.kept(predicted_BTV)
        if kept_BTV.shape != self.observed_BTV.shape:
            return 0
        wrong_BT = beyond_at(kept_BTV, self.observed_BTV, self.budget, -1)
        if self.real is not None:
            wrong_BT &= self.real.to(wrong_BT.device)
        wrong_T = wrong_BT.any(0)
        return int(wrong_T.long().argmax()) if bool(wrong_T.any()) else wrong_T.numel()

    @property
    def columns(self) -> tuple[int, ...] | None:
        """Which positions of the forward were observed; None for all."""
        return self.provenance.columns if self.provenance is not None else None

    @property
    def real(self) -> Tensor | None:
        """(B, T) booleans of the observed tokens that are no padding; None where all are real."""
        real_BT = real_tokens(self.spec)
        return real_BT if real_BT is None else self.kept(real_BT)

    def again(self, subject: Subject) -> Tensor:
        """The observed logits of another run, with what hooks change now; not remembered."""
        if self.provenance is not None:
            return self.provenance.again(subject)
        subject.passes.drop(self.spec)
        logits_BTV = subject.logits(self.spec)
        subject.passes.drop(self.spec)
        return logits_BTV

    def run(self, subject: Subject) -> None:
        """Repeat the observed call, so that hooks see it."""
        if self.provenance is not None:
            self.provenance.again(subject)
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
        """The sides that differ from the trusted path, without repeats."""
        found = [side for side in self.sides if side.wrong]
        same = len(found) == 2 and found[0].spec == found[1].spec and found[0].provenance is None
        return tuple(found[:1] if same else found)

    @property
    def budget(self) -> float:
        """How far rounding moves these logits."""
        return self.sides[0].budget

    def differ(self, left_BTV: Tensor, right_BTV: Tensor, real_BT: Tensor | None = None) -> bool:
        """Whether two logits differ beyond the budget, at real tokens."""
        return max_diff_at(left_BTV, right_BTV, real_BT) > self.budget

    def failing_rows(self) -> list[int]:
        """The sequences of the first side whose logits the second side has otherwise; all where the
        second side has other sequences.

        Raises:
            Unsupported: a mask hides tokens between others.
        """
        got, want = self.sides
        rows = range(len(got.spec.tokens))
        parts = [Sequence.of(got.spec, row) for row in rows]
        if got.observed_BTV.shape == want.observed_BTV.shape:
            moved = (
                self.differ(part.states(got.observed_BTV), part.states(want.observed_BTV))
                for part in parts
            )
        else:
            moved = (part.alone(got.spec).tokens == want.spec.tokens for part in parts)
        return [row for row, fails in zip(rows, moved, strict=True) if fails] or [*rows]


def real_tokens(spec: ForwardSpec) -> Tensor | None:
    """(B, T) booleans of the tokens that are no padding; None where all are real."""
    return torch.tensor(spec.mask.rows, dtype=torch.bool) if isinstance(spec.mask, Mask2D) else None


def max_diff_at(left_BTV: Tensor, right_BTV: Tensor, real_BT: Tensor | None = None) -> float:
    """The largest difference at some positions; infinite where only one side is not finite.

    A prediction reproduces a failure with NaN if it gives NaN at the same places.
    """
    if left_BTV.shape != right_BTV.shape:
        return math.inf
    if real_BT is not None:
        real_BT = real_BT.to(left_BTV.device)
        left_BTV, right_BTV = left_BTV[real_BT], right_BTV[real_BT]
    finite = torch.isfinite(left_BTV)
    if not torch.equal(finite, torch.isfinite(right_BTV)):
        return math.inf
    return max_abs_diff(left_BTV[finite].double(), right_BTV[finite].double())


def failing(finding: Finding) -> list[Measurement]:
    """The failing cases that carry their forwards, the most telling first: not following from
    another probe, without padding, or with padding that leaves positions where they were, in a few
    uneven chunks, not long.
    """
    failed = (case for case in finding.cases if verdict_of(case) is Verdict.FAIL)
    return sorted((case for case in failed if case.rerun is not None), key=_telling)


def _telling(case: Measurement) -> tuple[bool, int, bool, bool, bool, int, float]:
    spec: ForwardSpec = case.rerun.got if case.rerun else ForwardSpec(())
    several = len(spec.chunks) > 2 and any(size > 1 for size in spec.chunks[1:])
    plain = not several if spec.chunks else bool(case.rerun and case.rerun.provenance)
    return (
        bool(case.follows),
        _padding(spec),
        spec.cache_kind not in USUAL,
        plain,
        len(spec.chunks) > FEW_CHUNKS,
        spec.length // LONG if spec.tokens else 0,
        -case.excess,
    )


def _padding(spec: ForwardSpec) -> int:
    """0 without padding, 2 where tokens stand behind some and are given no positions, 1 else."""
    rows = spec.mask.rows if isinstance(spec.mask, Mask2D) else ()
    moved = spec.positions is None and any(row[0] == 0 for row in rows)
    return 2 if moved else int(any(0 in row for row in rows))


def unmeasured(name: str, got: ForwardSpec, want: ForwardSpec) -> Comparison:
    """A case of two forwards that were not compared yet."""
    return Comparison(name, Divergence(max_abs=0.0, positions=0), 0.0, rerun=Rerun(got, want))


def attns_of(case: Measurement) -> set[str | None]:
    """The attention implementations that both forwards of a case ask for; None: the one in use."""
    rerun = case.rerun
    return set() if rerun is None else {rerun.got.attn, rerun.want.attn}


def open_case(subject: Subject, case: Measurement, by_arguments: bool = False) -> Failure:
    """Run both forwards of a case again, and the trusted path beside them.

    The trusted path takes its masks from the config, or from the model where that leaves fewer
    wrong sides. With `by_arguments` attention is left to the model: a fault of attention is then on
    the trusted path too.

    Raises:
        Unsupported: a forward cannot run again.
    """
    budget = max(subject.budget.value, case.budget if isinstance(case, Comparison) else 0.0)
    by_config = _opened(Trusted(subject, by_arguments=by_arguments), case, budget)
    # of one forward against itself the model's own masks say nothing
    alike = case.rerun is not None and case.rerun.got == case.rerun.want
    if by_arguments or alike or not by_config.sides[1].wrong:
        return by_config
    by_model = _opened(Trusted(subject, own_masks=True), case, budget)
    return min(by_config, by_model, key=lambda failure: len(failure.wrong))


def on_a_cache(failure: Failure) -> Failure:
    """The same failure against a trusted path that fills a cache.

    Raises:
        Unsupported: a forward cannot run again.
    """
    return _opened(replace(failure.trusted, caching=True), failure.case, failure.budget)


def _opened(trusted: Trusted, case: Measurement, budget: float) -> Failure:
    assert case.rerun is not None
    got, want, provenance = case.rerun.got, case.rerun.want, case.rerun.provenance
    first = _side(trusted, got, budget, provenance)
    if provenance is not None and provenance.how == AFTER:
        trusted.subject.passes.drop(want)  # its remembered logits are those after the other call
    return Failure(case, trusted, (first, _side(trusted, want, budget)))


def _side(
    trusted: Trusted, spec: ForwardSpec, budget: float, provenance: Provenance | None = None
) -> FailureSide:
    subject = trusted.subject
    reset_buffers(trusted)
    trusted_BTV: Tensor | None = None
    with contextlib.suppress(Unsupported), model_untouched(subject.model):
        trusted_BTV = trusted.logits(spec)  # what it leaves behind is not what the case found
    observed_BTV = provenance.again(subject) if provenance is not None else subject.logits(spec)
    return FailureSide(spec, observed_BTV, trusted_BTV, budget, provenance)


def reset_buffers(trusted: Trusted) -> None:
    """Reset what modules keep between calls, such as the rotary table of the longest, by a short
    call.
    """
    # both run forwards of their own the first time, which must not come after the short call
    _ = trusted.out_of_reach, trusted.subject.can.mask_4d
    with torch.no_grad():
        trusted.subject.passes.call((trusted.subject.inputs.row[:SHORT],), use_cache=False)
