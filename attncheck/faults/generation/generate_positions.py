"""What it is
    generate() passes the model other positions than the model's own rule gives.

How it looks
    forward is right, generate() is wrong from the first token or after the prompt.

Where it comes from
    A shared helper that counts from 0 where the model counts from pad + 1; positions that go on
    from the padded length.

What to change
    Let the model compute its positions, or override `prepare_inputs_for_generation` with the
    model's own rule.

Axes: B batch, T positions of this call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Change, Fault, Hypothesis, Injected, WrongForward, injection
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions, counting
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Count one too far wherever positions are passed with a filled cache."""
    subject.can.reads_positions.require(CannotInject)
    injection.require_counting_cache(subject)
    name = str(subject.forward_adapter.positions_name)

    def positions(call: dict[str, Any], before: int, new: int) -> Tensor | None:
        if not before:
            return None
        given = call.get(name)
        if isinstance(given, Tensor):
            return given + 1
        return torch.arange(before + 1, before + 1 + new)

    return injection.with_positions(subject, positions)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    given = _from_first_position(forward)
    if given is not None and not _right(given, forward.spec):
        first = given[0][0] + forward.subject.can.first_position
        yield Hypothesis(
            f"generate() passes position {first} for the first token of the row",
            predict=lambda trusted, spec: trusted.logits(spec, Change(positions=given)),
        )


def _from_first_position(forward: WrongForward) -> Positions | None:
    """The positions that generate() passed, counted from the model's own first one."""
    spec, provenance = forward.spec, forward.provenance
    if provenance is None or len(spec.tokens) != 1 or not forward.subject.can.takes_positions:
        return None
    row = provenance.explicit_positions(spec.length)
    if row is None:
        return None
    return (tuple(position - forward.subject.can.first_position for position in row),)


def _right(given: Positions, spec: ForwardSpec) -> bool:
    """Whether all real tokens got the positions that they should have."""
    right = spec.positions or counting(1, spec.length)
    real = spec.mask.rows[0] if isinstance(spec.mask, Mask2D) else (1,) * spec.length
    return all(
        one == other for one, other, text in zip(given[0], right[0], real, strict=True) if text
    )


FAULT = Fault(
    name="generate-positions",
    inject=inject,
    hypotheses={100: _hypotheses},
    on_cache_only=True,
    looks_like=("position-offset",),
)
