"""Whether moving every position only turns a model's queries and keys: then the logits must not
move at all.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attncheck.probing import (
    REFUSALS,
    AttentionCall,
    ForwardSpec,
    Measurement,
    Positions,
    Row,
    Subject,
    Tokens,
    Unsupported,
    beyond,
    beyond_at,
    counting,
    first_line,
    max_abs,
    own_budget,
    stored_tables,
)

CLOSE = 1e-6
"""Relative: far below what scaling by a position does, far above what a turn leaves behind in
float64.
"""


def shifted(subject: Subject, name: str, row: Row, by: int) -> Measurement:
    """One case: a row with all its positions moved by a constant; judged where that must change
    nothing, a figure elsewhere.

    Raises:
        Unsupported: the context leaves no room to move.
    """
    if by <= 0:
        raise Unsupported(
            f"the context of {subject.inputs.room} tokens leaves no room to move {len(row)} positions"
        )
    usual, moved = (counting(1, len(row), start) for start in (0, by))
    turned = only_turns(subject, (row,), usual, moved)
    if turned is None and by > len(row) and stored_tables(subject.model):
        turned = "the angles come from a stored table, whose rounding grows with the position"
    got, want = ForwardSpec((row,), positions=moved), ForwardSpec((row,), positions=usual)
    return subject.compare(
        name,
        subject.logits(got),
        subject.logits(want),
        expect="equal" if turned is None else "figure",
        note=f"by {by}" + (f"; {turned}" if turned else ""),
        spec=(got, want),
        budget=own_budget(subject.passes, got, subject.dtype_name, subject.numerics)
        if turned is None
        else None,
    )


def only_turns(subject: Subject, tokens: Tokens, usual: Positions, moved: Positions) -> str | None:
    """None where the model is purely rotary, else how a layer departs from it by design.

    Layers are asked in order. One whose values have moved got another input: then an earlier layer
    moved, although its queries and keys only turned, and that is not by design.
    """
    if not subject.can.kernel:
        return subject.can.kernel.reason
    turned = False
    for number, (left, right) in enumerate(
        zip(_calls(subject, tokens, usual), _calls(subject, tokens, moved), strict=False)
    ):
        if not _same(left.value_BGSD, right.value_BGSD):
            return "values change with the position: not purely rotary" if number == 0 else None
        if not (
            _same_lengths(left.query_BHTD, right.query_BHTD)
            and _same_lengths(left.key_BGSD, right.key_BGSD)
        ):
            return "queries or keys change their length with the position: not purely rotary"
        if not _same_scores(left, right):
            return "the mask or the scale changes with the position: not purely rotary"
        if _in_part(left.key_BGSD, right.key_BGSD):
            return "some keys have no position (of an encoder, of a memory): not purely rotary"
        turned |= not _same(left.query_BHTD, right.query_BHTD)
    return None if turned else "the queries of no layer change with the position: not rotary"


def _same(left: Tensor, right: Tensor) -> bool:
    limit = max(CLOSE, _noise(left)) * max_abs(left)
    return left.shape == right.shape and not beyond(left, right, limit)


def _same_lengths(left: Tensor, right: Tensor) -> bool:
    return _same(left.norm(dim=-1), right.norm(dim=-1))


def _in_part(left_BGSD: Tensor, right_BGSD: Tensor) -> bool:
    """Whether the keys at some places turned while those at others stayed as they were."""
    if left_BGSD.shape != right_BGSD.shape:
        return False
    turned_S = beyond_at(left_BGSD, right_BGSD, CLOSE * max_abs(left_BGSD), (0, 1, 3))
    return bool(turned_S.any()) and not bool(turned_S.all())


def _same_scores(left: AttentionCall, right: AttentionCall) -> bool:
    """Whether a scale or a float mask that the kernel is handed stayed as it was."""
    first, second = (each.options.get("scaling") for each in (left, right))
    scales = (
        _same(first, second)
        if isinstance(first, Tensor) and isinstance(second, Tensor)
        else first == second
    )
    masks = isinstance(left.mask, Tensor) and isinstance(right.mask, Tensor)
    return scales and (not masks or torch.equal(left.mask, right.mask))  # type: ignore[arg-type]


def _noise(tensor: Tensor) -> float:
    return 16 * torch.finfo(tensor.dtype).eps


def _calls(subject: Subject, tokens: Tokens, positions: Positions) -> list[AttentionCall]:
    given_BT = torch.tensor(positions, device=subject.device)
    try:
        return subject.record_calls(tokens, AttentionCall.copy, positions_BT=given_BT)
    except REFUSALS as error:
        raise Unsupported(
            f"positions from {int(given_BT.min())} on raise {first_line(error)}"
        ) from error
