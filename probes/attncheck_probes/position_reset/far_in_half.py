"""Angles of far positions in half precision: as the model is stored, or under autocast.

Rounding of states does not depend on where a row stands; angles that are computed in half precision
lose more the further it is away.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from attncheck.probing import (
    AtMost,
    Cause,
    ForwardSpec,
    Measurement,
    Subject,
    Unsupported,
    attempt,
    counting,
    hooked,
    max_abs_diff,
    own_budget,
)
from attncheck_probes.position_reset.shifted import not_rotary

NEAR = (1, 2, 3)
ROW = 12
AUTOCAST, STORED = "positions shifted far, under autocast", "positions shifted far, as stored"


def far_in_half(subject: Subject, far: int) -> Iterator[Measurement]:
    """One case for a rotary model; none where the model is stored in another way, selects by value
    or has no room for far positions.
    """
    dtype = getattr(torch, subject.loaded.own_dtype)
    half = torch.finfo(dtype).bits == 16
    row = subject.inputs.row[:ROW]
    usual, moved = (ForwardSpec((row,), positions=counting(1, len(row), at)) for at in (0, far))
    if far < 2 * ROW or not subject.can.is_smooth or not_rotary(subject, usual, moved) is not None:
        return
    yield attempt(STORED if half else AUTOCAST, _shifted, subject, half, far)


def _shifted(subject: Subject, half: bool, far: int) -> Measurement:
    """What far positions change, against what moves of a few tokens and other orders of sums do."""
    stored = subject.loaded.own_dtype
    with subject.at(stored if half else "float32") as view:
        row = view.inputs.row[:ROW]
        spec = ForwardSpec((row,), positions=counting(1, len(row)))
        budget = own_budget(view.passes, spec)
        context = contextlib.nullcontext() if half else _autocast(view)
        with context:
            usual_BTV = _logits(view, 0)
            near = max(max_abs_diff(_logits(view, by), usual_BTV) for by in NEAR)
            far_BTV = _logits(view, far)
        value = max(budget.value, near * budget.value / (budget.floor or budget.value))
        moved, name = max_abs_diff(far_BTV, usual_BTV), STORED if half else AUTOCAST
        note = f"by {far}; the limit is what moves of {NEAR[0]} to {NEAR[-1]} tokens show"
        case = AtMost(name, moved, "largest difference of logits", limit=value, note=note)
        if moved <= value:
            return case
        how = f"in {stored}" if half else "in bfloat16 under autocast"
        note = f"by {far}: the angles of far positions are computed {how}"
        return replace(case, note=note, cause=Cause("tables-rounded", module=_tables(view)))


def _autocast(subject: Subject) -> AbstractContextManager[None]:
    kind = subject.device.type
    if not torch.amp.is_autocast_available(kind):
        raise Unsupported(f"there is no autocast on {kind}")
    return torch.autocast(kind, dtype=torch.bfloat16)


def _logits(subject: Subject, start: int) -> Tensor:
    """logits_BTV of the row from position `start` on, never remembered."""
    positions_BT = torch.arange(start, start + ROW, device=subject.device)[None]
    with torch.no_grad():
        reply = subject.passes.call(
            (subject.inputs.row[:ROW],), positions_BT=positions_BT, use_cache=False
        )
    return reply.logits_BTV.float()


def _tables(subject: Subject) -> str:
    """The first module that returns a cosine and a sine; "" where none does."""
    found: list[nn.Module] = []

    def after(module: nn.Module, args: object, output: object) -> None:
        pair = output if isinstance(output, tuple) and len(output) == 2 else (None, None)
        cos, sin = pair
        if isinstance(cos, Tensor) and isinstance(sin, Tensor) and cos.shape == sin.shape:
            one = cos.double() ** 2 + sin.double() ** 2
            if bool(((one - one.flatten()[0]).abs() < 0.1).all()):
                found.append(module)

    with hooked(each.register_forward_hook(after) for each in subject.model.modules()):
        _logits(subject, 0)
    names = {id(module): name for name, module in subject.model.named_modules()}
    return next((names[id(each)] for each in found), "")
