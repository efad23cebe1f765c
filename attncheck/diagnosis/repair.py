"""Where no fault reproduces a failure: the smallest change of the call that heals it says which
part is at fault.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.diagnosis.failure import Failure, max_diff_at
from attncheck.faults.engine.schedule import scheduled_logits
from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Mask4D, Positions, counting
from attncheck.model.subject import Subject

IMPLEMENTATIONS = ("eager", "sdpa")
OWN_STORE = "own key/value store"
ADVICE = {
    "the same calls by hand": "The same tokens fed by hand in the same pieces, with the right positions, give the right logits: "
    "what is made of the call on its way to the model, or of the logits on their way back, is at fault.",
    "explicit positions": "With `position_ids` passed explicitly the call is right: the positions that the model makes up by "
    "itself are at fault on this path.",
    "explicit 4D mask": "With the mask written out as 4D the call is right: the mask that is built on this path is at fault.",
    "explicit positions and 4D mask": "With positions and mask written out the call is right: what the model derives from the "
    "length of the cache is at fault.",
    OWN_STORE: "With attention written out and keys and values kept outside the model the call is right: the "
    "fault is in the cache, the mask or the kernel of this path, and not in projections, positions or norms.",
    "no cache": "Without a cache the call is right: the fault is in what is kept between calls.",
}


@final
@dataclass(frozen=True)
class Repair:
    """A repair that heals the failing pass, and what is left of the difference."""

    name: str
    residual: float

    @property
    def advice(self) -> str:
        """What the repair says about the fault."""
        if self.name in ADVICE:
            return ADVICE[self.name]
        return f"With {self.name} the call is right: the implementation in force is at fault."


def repaired(failure: Failure) -> tuple[Repair | None, tuple[str, ...]]:
    """The smallest repair that heals the failing side, and the names of those that do not."""
    failed: list[str] = []
    side = failure.wrong[0] if failure.wrong else failure.sides[0]
    target_BTV = _target(failure)
    if target_BTV is None:
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


def _target(failure: Failure) -> Tensor | None:
    """What the failing side should have been: the trusted path, or the other side where both look
    right by themselves.
    """
    got, want = failure.sides
    if failure.wrong:
        return failure.wrong[0].trusted_BTV
    same = got.spec.tokens == want.spec.tokens and failure.case.expect == "equal"
    return want.observed_BTV if same else None


def _repairs(failure: Failure, spec: ForwardSpec) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """From the smallest intervention to the largest."""
    subject = failure.subject
    if failure.sides[0].made is not None:
        yield "the same calls by hand", lambda: subject.logits(spec)
    positions, mask = _positions(spec), _written_out(subject, spec)
    yield from _variant(
        subject,
        "explicit positions",
        spec,
        spec.positions is None and replace(spec, positions=positions),
    )
    yield from _variant(
        subject, "explicit 4D mask", spec, mask is not None and replace(spec, mask=mask)
    )
    both = (
        mask is not None
        and spec.positions is None
        and replace(spec, positions=positions, mask=mask)
    )
    yield from _variant(subject, "explicit positions and 4D mask", spec, both)
    for attn in IMPLEMENTATIONS:
        in_force = spec.attn or subject.attn
        yield from _variant(
            subject, f"`{attn}` attention", spec, attn != in_force and replace(spec, attn=attn)
        )
    if len(spec.chunks) > 1:
        yield OWN_STORE, lambda: scheduled_logits(failure.trusted, spec)
        yield from _variant(
            subject, "no cache", spec, replace(spec, chunks=(), use_cache=False, cache_kind="")
        )


def _variant(
    subject: Subject, name: str, before: ForwardSpec, after: ForwardSpec | bool
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    if isinstance(after, ForwardSpec) and after != before:
        yield name, lambda: subject.logits(after)


def _positions(spec: ForwardSpec) -> Positions:
    if not isinstance(spec.mask, Mask2D):
        return counting(len(spec.tokens), spec.length)
    return tuple(
        tuple(max(0, sum(row[: t + 1]) - 1) for t in range(spec.length)) for row in spec.mask.rows
    )


def _written_out(subject: Subject, spec: ForwardSpec) -> Mask:
    """The mask of the pass as 4D, padding in a document of its own; None where it is one already or
    windows would be lost.
    """
    if isinstance(spec.mask, Mask4D) or not subject.can.mask_4d or subject.facts.window:
        return None
    if isinstance(spec.mask, Mask2D):
        return Mask4D(tuple(tuple(0 if real else 1 for real in row) for row in spec.mask.rows))
    return Mask4D(((0,) * spec.length,) * len(spec.tokens))
