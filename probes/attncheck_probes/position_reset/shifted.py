"""A constant shift of all positions: where it only rotates queries and keys, logits must stay.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import (
    REFUSALS,
    AttentionCall,
    ForwardSpec,
    Measurement,
    Row,
    Subject,
    Unsupported,
    beyond,
    beyond_at,
    config_fields,
    counting,
    first_line,
    hooked,
    max_abs,
    own_budget,
    stored_tables,
)

VALUES = re.compile(r"rotary_value|rope_value|value_rope|rotate_value")
"""A field by which a config asks for rotated values (RoFormer)."""
CLOSE = 1e-6
"""Relative: far below the effect of a scale per position, far above the rounding of a rotation in
float64.
"""


def shifted(subject: Subject, name: str, row: Row, by: int) -> Measurement:
    """A row with all its positions moved by a constant: judged where that must change nothing, a
    figure elsewhere.
    """
    if by <= 0:
        raise Unsupported(
            f"the context of {subject.inputs.room} tokens leaves no room to move {len(row)} "
            "positions"
        )
    usual, moved = (
        ForwardSpec((row,), positions=counting(1, len(row), start)) for start in (0, by)
    )
    design = not_rotary(subject, usual, moved)
    if design is None and by > len(row) and stored_tables(subject.model):
        design = "the angles come from a stored table, whose rounding grows with the position"
    if design is not None:
        note = f"by {by}; {design}"
        return subject.compare_forwards(name, moved, usual, expect="figure", note=note)
    case = subject.compare_forwards(name, moved, usual, note=f"by {by}")
    if not case.beyond:
        return case
    # a healthy model rounds no angle to half precision: far positions are no excuse there
    half = torch.finfo(subject.dtype).eps > torch.finfo(torch.float32).eps
    budget = own_budget(subject.passes, usual if half else moved)
    return subject.compare_forwards(name, moved, usual, note=f"by {by}", budget=budget)


def not_rotary(subject: Subject, usual: ForwardSpec, moved: ForwardSpec) -> str | None:
    """How a layer depends on absolute positions by design; None where the model is purely rotary.

    Layers are compared in order. Where a later layer's values have changed, its input has: an
    earlier layer's output moved although its queries and keys were only rotated, which no design
    explains.
    """
    if not subject.can.watch:
        return subject.can.watch.reason
    rotated = False
    pairs = zip(_calls(subject, usual), _calls(subject, moved), strict=False)
    for number, (left, right) in enumerate(pairs):
        if not _same(left.value_BGSD, right.value_BGSD):
            rotates = _rotates_values(subject, left, right, usual, moved)
            return None if number or rotates else "values change with the position: not rotary"
        queries, keys = (left.query_BHTD, right.query_BHTD), (left.key_BGSD, right.key_BGSD)
        if not (_same_lengths(*queries) and _same_lengths(*keys)):
            return "queries or keys change their length with the position: not purely rotary"
        if not _same_scores(left, right):
            return "the mask or the scale changes with the position: not purely rotary"
        if _in_part(*keys):
            return "some keys have no position (of an encoder, of a memory): not purely rotary"
        rotated |= not _same(*queries)
    return None if rotated else "the queries of no layer change with the position: not rotary"


def _rotates_values(
    subject: Subject, left: AttentionCall, right: AttentionCall, *specs: ForwardSpec
) -> bool:
    """Whether a layer rotates its values although the same hidden states enter it. A rotary scheme
    rotates queries and keys; a config that asks for more says so.
    """
    fields = config_fields(subject.text_config).items()
    if any(VALUES.search(name) and value is True for name, value in fields):
        return False
    before, after = (_entering(subject, left.module, spec) for spec in specs)
    unchanged = before is not None and after is not None and _same(before, after)
    return unchanged and _same_lengths(left.value_BGSD, right.value_BGSD)


def _entering(subject: Subject, module: nn.Module, spec: ForwardSpec) -> Tensor | None:
    """hidden_BTW: the first float tensor that a module gets; None where it gets none."""
    seen: list[Tensor] = []

    def before(_: nn.Module, args: Any, named: Any) -> None:
        tensors = (each for each in (*args, *named.values()) if isinstance(each, Tensor))
        seen.extend(each for each in tensors if each.is_floating_point() and each.ndim == 3)

    with hooked([module.register_forward_pre_hook(before, with_kwargs=True)]):
        subject.passes.replay(spec)
    return seen[0] if seen else None


def _same(left: Tensor, right: Tensor) -> bool:
    limit = max(CLOSE, 16 * torch.finfo(left.dtype).eps) * max_abs(left)
    return left.shape == right.shape and not beyond(left, right, limit)


def _same_lengths(left: Tensor, right: Tensor) -> bool:
    return _same(left.norm(dim=-1), right.norm(dim=-1))


def _in_part(left_BGSD: Tensor, right_BGSD: Tensor) -> bool:
    """Whether some keys were rotated and others not."""
    if left_BGSD.shape != right_BGSD.shape:
        return False
    rotated_S = beyond_at(left_BGSD, right_BGSD, CLOSE * max_abs(left_BGSD), (0, 1, 3))
    return bool(rotated_S.any()) and not bool(rotated_S.all())


def _same_scores(left: AttentionCall, right: AttentionCall) -> bool:
    """Whether the scale and a float mask that the kernel gets are the same."""
    first, second = (each.options.get("scaling") for each in (left, right))
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        scales = _same(first, second)
    elif isinstance(first, float) and isinstance(second, float):
        scales = math.isclose(first, second, rel_tol=CLOSE)
    else:
        scales = first == second
    masks = isinstance(left.mask, Tensor) and isinstance(right.mask, Tensor)
    return scales and (not masks or torch.equal(left.mask, right.mask))  # type: ignore[arg-type]


def _calls(subject: Subject, spec: ForwardSpec) -> list[AttentionCall]:
    try:
        return subject.record_calls(spec, AttentionCall.copy)
    except (*REFUSALS, Unsupported) as error:
        start = min(min(row) for row in spec.positions or ())
        raise Unsupported(f"positions from {start} on raise {first_line(error)}") from error
