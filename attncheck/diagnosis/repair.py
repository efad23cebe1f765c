"""Where no fault reproduces a failure: the smallest change of the call that fixes it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.diagnosis.failure import Failure, FailureSide, max_diff_at
from attncheck.faults.engine.schedule import scheduled_logits
from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Mask4D, Positions, counting
from attncheck.model.subject import Subject

IMPLEMENTATIONS = ("eager", "sdpa")
BY_HAND = "the same calls by hand"
POSITIONS, MASK, BOTH = "explicit positions", "explicit 4D mask", "explicit positions and 4D mask"
OWN_STORE = "own key/value store"
NO_CACHE = "no cache"
ADVICE = {
    BY_HAND: "The same tokens, fed by hand in the same chunks with the right positions, give the "
    "right logits: the fault is in how the call is prepared for the model or its logits are "
    "returned.",
    POSITIONS: "With `position_ids` passed explicitly the call is right: the fault is in the "
    "positions that the model computes by itself in this call.",
    MASK: "With the mask written out as 4D the call is right: the fault is in the mask that the "
    "model builds in this call.",
    BOTH: "With positions and mask written out the call is right: the fault is in what the model "
    "derives from the length of the cache.",
    OWN_STORE: "With attention written out and keys and values kept outside the model the call is "
    "right: the fault is in the cache, the mask or the kernel of this call, and not in "
    "projections, positions or norms.",
    NO_CACHE: "Without a cache the call is right: the fault is in what is kept between calls.",
}
OTHER_ADVICE = "With {} the call is right: the fault is in the implementation in force."


@final
@dataclass(frozen=True)
class Repair:
    """A change of the call that fixes the failing forward, and the remaining difference."""

    name: str
    residual: float

    @property
    def advice(self) -> str:
        """What the repair says about the fault."""
        return ADVICE.get(self.name, OTHER_ADVICE.format(self.name))


def repaired(failure: Failure) -> tuple[Repair | None, tuple[str, ...]]:
    """The smallest repair that fixes the failing side, and the names of those that do not."""
    failed: list[str] = []
    side = failure.wrong[0] if failure.wrong else failure.sides[0]
    target_BTV = _target(failure)
    if target_BTV is None or _right_already(failure, side, target_BTV):
        return None, ()
    for name, run in _repairs(failure, side.spec):
        try:
            residual = max_diff_at(side.kept(run()), side.kept(target_BTV), side.real)
        except (Unsupported, RuntimeError, ValueError, IndexError):
            continue
        if residual <= failure.budget:
            return Repair(name, residual), tuple(failed)
        failed.append(name)
    return None, tuple(failed)


def _right_already(failure: Failure, side: FailureSide, target_BTV: Tensor) -> bool:
    """Whether the observed logits are the right ones, so that no repair could show anything."""
    kept_BTV = side.kept(target_BTV)
    return max_diff_at(side.observed_BTV, kept_BTV, side.real) <= failure.budget


def _target(failure: Failure) -> Tensor | None:
    """The right logits of the failing side: of the trusted path, or of the other side where both
    agree with the trusted path.
    """
    got, want = failure.sides
    if failure.wrong:
        return failure.wrong[0].trusted_BTV
    same = got.spec.tokens == want.spec.tokens and failure.case.expect == "equal"
    return want.observed_BTV if same else None


def _repairs(failure: Failure, spec: ForwardSpec) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """From the smallest intervention to the largest."""
    subject = failure.subject
    if failure.sides[0].provenance is not None:
        yield BY_HAND, lambda: subject.logits(spec)
    for name, changed in _changed_calls(subject, spec):
        if name == NO_CACHE:
            yield OWN_STORE, lambda: scheduled_logits(failure.trusted, spec)
        if changed != spec:
            yield name, partial(subject.logits, changed)


def _changed_calls(subject: Subject, spec: ForwardSpec) -> Iterator[tuple[str, ForwardSpec]]:
    positions, mask = _positions(spec), _written_out(subject, spec)
    if spec.positions is None:
        yield POSITIONS, replace(spec, positions=positions)
    if mask is not None:
        yield MASK, replace(spec, mask=mask)
        if spec.positions is None:
            yield BOTH, replace(spec, positions=positions, mask=mask)
    for attn in IMPLEMENTATIONS:
        if attn != (spec.attn or subject.attn):
            yield f"`{attn}` attention", replace(spec, attn=attn)
    if len(spec.chunks) > 1:
        yield NO_CACHE, replace(spec, chunks=(), use_cache=False, cache_kind="")


def _positions(spec: ForwardSpec) -> Positions:
    if not isinstance(spec.mask, Mask2D):
        return counting(len(spec.tokens), spec.length)
    return tuple(
        tuple(max(0, sum(row[: t + 1]) - 1) for t in range(spec.length)) for row in spec.mask.rows
    )


def _written_out(subject: Subject, spec: ForwardSpec) -> Mask:
    """The mask as 4D, padding in a document of its own; None where it is 4D or loses a window."""
    if isinstance(spec.mask, Mask4D) or not subject.can.mask_4d or subject.facts.window:
        return None
    if isinstance(spec.mask, Mask2D):
        return Mask4D(tuple(tuple(0 if real else 1 for real in row) for row in spec.mask.rows))
    return Mask4D(((0,) * spec.length,) * len(spec.tokens))
