"""Failures that stay when attention, positions and masks are as they should be: something else
carries information.

Both sides of such a case equal the trusted path, and still disagree: what differs between their
tokens tells what leaks.

Axes: B batch, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.diagnosis.failure import (
    Failure,
    FailureSide,
    max_diff_at,
    real_tokens,
    reset_buffers,
)
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D, counting
from attncheck.model.inputs import Row


@final
@dataclass(frozen=True)
class OutsideFault:
    """A fault that the trusted path has too, and how far that path is from what was observed."""

    fault: str
    parameter: str
    residual: float


def explained_outside(failure: Failure) -> OutsideFault | None:
    """The fault behind a case that the trusted path reproduces on both sides, or None where there
    is none of a known kind.
    """
    if unsteady(failure):
        return OutsideFault("dropout-active", "two equal calls on the trusted path differ", 0.0)
    if not failure.wrong:
        return _between(failure)
    return _not_causal(failure)


def unsteady(failure: Failure) -> bool:
    """Whether the trusted path gives two answers to one question: then nothing can be compared, and
    something is random.
    """
    want = failure.sides[1]
    reset_buffers(failure.trusted)
    return (
        want.trusted_BTV is not None
        and max_diff_at(failure.trusted.logits(want.spec), want.trusted_BTV) > failure.budget
    )


def _between(failure: Failure) -> OutsideFault | None:
    got, want = failure.sides
    residual = max(
        side.apart(side.trusted_BTV) for side in failure.sides if side.trusted_BTV is not None
    )
    ignored = _positions_ignored(failure, got)
    if ignored is not None:
        return ignored
    named = _kind_of_change(failure, got.spec, want.spec)
    return OutsideFault(named, "attention itself is right", residual) if named else None


def _kind_of_change(failure: Failure, got: ForwardSpec, want: ForwardSpec) -> str | None:
    if len(got.tokens) != len(want.tokens):
        return "rows-mixed" if _rows_matter(failure, got) else None
    changed = [_changed(left, right) for left, right in zip(got.tokens, want.tokens, strict=True)]
    if len(changed) > 1 and any(not each for each in changed) and any(changed):
        return "rows-mixed"
    if not any(changed) or got.length != want.length:
        return None
    if isinstance(got.mask, Mask2D):
        hidden = [{t for t, real in enumerate(row) if not real} for row in got.mask.rows]
        if all(set(each) <= rows for each, rows in zip(changed, hidden, strict=True)):
            return "padding-visible"
    return "leak-outside-attention" if got.positions is None else None


def carried_elsewhere(failure: Failure) -> OutsideFault | None:
    """What the trusted path does that no path may do: rows that read each other, earlier logits
    that follow later tokens.
    """
    if len(failure.sides[0].spec.tokens) > 1 and _rows_matter(failure, failure.sides[0].spec):
        return OutsideFault("rows-mixed", "attention itself is right", 0.0)
    if reads_ahead(failure):
        return OutsideFault("leak-outside-attention", "attention itself is right", 0.0)
    return (
        OutsideFault("padding-visible", "attention itself is right", 0.0)
        if padding_moves(failure)
        else None
    )


def under_padding(failure: Failure) -> ForwardSpec | None:
    """The failing pass with other tokens under its padding; None where it has no padding."""
    spec, inputs = failure.sides[0].spec, failure.subject.inputs
    if not isinstance(spec.mask, Mask2D) or all(all(row) for row in spec.mask.rows):
        return None
    rows = []
    for tokens, mask in zip(spec.tokens, spec.mask.rows, strict=True):
        other = inputs.other(tokens, salt=31)
        rows.append(
            tuple(
                token if real else new for token, new, real in zip(tokens, other, mask, strict=True)
            )
        )
    return replace(spec, tokens=tuple(rows))


def padding_moves(failure: Failure) -> bool:
    """Whether tokens under the padding move real logits on the trusted path."""
    changed = under_padding(failure)
    if changed is None:
        return False
    spec = failure.sides[0].spec
    return (
        max_diff_at(
            failure.trusted.logits(spec), failure.trusted.logits(changed), real_tokens(spec)
        )
        > failure.budget
    )


def _rows_matter(failure: Failure, got: ForwardSpec) -> bool:
    """Whether a row answers differently alone than among the others, on the trusted path and with
    the same padding.
    """
    together_BTV, real_BT = failure.trusted.logits(got), real_tokens(got)
    for row in range(len(got.tokens)):
        real = None if real_BT is None else real_BT[row : row + 1]
        if (
            max_diff_at(failure.trusted.logits(_row(got, row)), together_BTV[row : row + 1], real)
            > failure.budget
        ):
            return True
    return False


def _row(spec: ForwardSpec, row: int) -> ForwardSpec:
    mask = spec.mask
    if isinstance(mask, Mask2D):
        mask = Mask2D((mask.rows[row],))
    if isinstance(mask, Mask4D):
        mask = replace(mask, segments=(mask.segments[row],))
    return replace(
        spec,
        tokens=(spec.tokens[row],),
        positions=spec.positions and (spec.positions[row],),
        mask=mask,
    )


def _changed(left: Row, right: Row) -> list[int]:
    return [t for t, (one, other) in enumerate(zip(left, right, strict=False)) if one != other]


def _positions_ignored(failure: Failure, got: FailureSide) -> OutsideFault | None:
    """Explicit positions that change nothing on the trusted path either, where they ought to."""
    spec, subject = got.spec, failure.subject
    columns = counting(len(spec.tokens), spec.length)
    if spec.positions is None or spec.positions == columns or not subject.can.takes_positions:
        return None
    residual = got.apart(failure.trusted.logits(spec, Change(positions=columns)))
    if residual > failure.budget:
        return None
    if not _moves(failure, tuple(reversed(range(subject.inputs.length)))):
        return OutsideFault(
            "position-ids-ignored", "the positions of the call change nothing", residual
        )
    if isinstance(spec.mask, Mask2D) and _moves(
        failure, tuple(range(1, subject.inputs.length + 1))
    ):
        return OutsideFault(
            "position-ignores-padding", "the positions of the call change nothing", residual
        )
    return None


def _moves(failure: Failure, row: Row) -> bool:
    """Whether other positions on a plain row move the logits at all."""
    plain = ForwardSpec(failure.subject.inputs.tokens)
    usual_BTV, moved_BTV = (
        failure.trusted.logits(plain),
        failure.trusted.logits(plain, Change(positions=(row,))),
    )
    return max_diff_at(usual_BTV, moved_BTV) > failure.budget


def _not_causal(failure: Failure) -> OutsideFault | None:
    """A schedule against one forward: the first chunk alone gives what was observed, the whole row
    does not.
    """
    got = failure.sides[0].spec
    first = got.chunks[0] if len(got.chunks) > 1 else 0
    made = failure.sides[0].made is not None
    if not first or made or got.positions is not None or got.mask is not None:
        return None
    alone_BTV = failure.trusted.logits(ForwardSpec(tuple(row[:first] for row in got.tokens)))
    whole_BTV = _whole(failure.trusted, got)[:, :first]
    observed_BTV = failure.sides[0].observed_BTV[:, :first]
    residual = max_diff_at(alone_BTV, observed_BTV)
    if residual <= failure.budget < max_diff_at(whole_BTV, alone_BTV) and reads_ahead(failure):
        return OutsideFault("leak-outside-attention", "attention itself is right", residual)
    return None


def reads_ahead(failure: Failure) -> bool:
    """Whether another last token moves earlier logits on the trusted path; another length alone is
    no leak.
    """
    inputs, trusted = failure.subject.inputs, failure.trusted
    moved = ForwardSpec((inputs.other(inputs.row, inputs.length - 1),))
    plain_BTV, moved_BTV = trusted.logits(ForwardSpec(inputs.tokens)), trusted.logits(moved)
    return max_diff_at(plain_BTV[:, :-1], moved_BTV[:, :-1]) > failure.budget


def _whole(trusted: Trusted, got: ForwardSpec) -> Tensor:
    return trusted.logits(ForwardSpec(got.tokens))
