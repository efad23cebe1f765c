"""What it is
    With left padding, positions count the padding too (or do not, where they should).

How it looks
    The same prompt has other logits when padded; only models with absolute positions show it.

Where it comes from
    `arange` instead of `cumsum(attention_mask) - 1`; a generate() that prepares positions and a
    forward that does not.

What to change
    Derive positions from the mask, `attention_mask.cumsum(-1) - 1`, in forward and in generate
    alike.

Axes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Hypothesis, Injected, WrongForward, injection, positions
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions, counting
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond

SHIFT = 3


def inject(subject: Subject) -> Injected:
    """Count the columns of the batch, padding included, whatever the caller passes."""
    subject.can.reads_positions.require(CannotInject)
    subject.can.keeps_prefix.require(CannotInject)
    if not _shift_shows(subject):
        raise CannotInject(
            "moving every position changes nothing here, so counting the padding changes nothing"
            " either"
        )

    def columns(call: dict[str, Any], before: int, new: int) -> Tensor:
        return torch.arange(before, before + new)

    return injection.with_positions(subject, columns)


def _shift_shows(subject: Subject) -> bool:
    """Whether moving all positions by a constant changes the logits: not if they are all rotary."""
    tokens = (subject.inputs.row[: subject.inputs.length - SHIFT],)
    usual, moved = (
        ForwardSpec(tokens, positions=counting(1, len(tokens[0]), start)) for start in (0, SHIFT)
    )
    return beyond(subject.logits(usual), subject.logits(moved), subject.budget.value)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.padded and forward.subject.can.takes_positions:
        yield positions.positioned("", lambda spec: counting(len(spec.tokens), spec.length))
        yield positions.positioned("where they should", _from_mask)


def _from_mask(spec: ForwardSpec) -> Positions:
    if not isinstance(spec.mask, Mask2D):
        return counting(len(spec.tokens), spec.length)
    return tuple(map(_of_real_tokens, spec.mask.rows))


def _of_real_tokens(row: Row) -> Row:
    """Real tokens from 0; padding gets 1, as generate() gives it."""
    counted, seen = [], 0
    for real in row:
        counted.append(seen if real else 1)
        seen += real
    return tuple(counted)


FAULT = Fault(
    name="position-ignores-padding",
    inject=inject,
    hypotheses={230: _hypotheses},
    looks_like=("position-ids-ignored",),
)
