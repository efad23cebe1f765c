"""Decode schedules that a model takes correctly, and the forward that a decode must reproduce."""

from __future__ import annotations

from attncheck.model.forward_spec import ForwardSpec, Positions
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject


def decode_chunks(subject: Subject, length: int, prefill: int) -> tuple[int, ...]:
    """A prefill, a step, and the rest in one chunk; in single steps where a chunk of several tokens
    does not agree with one forward.
    """
    rest = length - prefill - 1
    return (prefill, 1, *((1,) * rest if not subject.can.chunks_agree else (rest,)))


def reference_forward(
    subject: Subject, row: Row, prefill: int, positions: Positions | None = None
) -> ForwardSpec:
    """One row alone: one forward, or its decode in single steps where the two differ, which
    `decode-paths` reports.
    """
    steps = (prefill, *(1,) * (len(row) - prefill))
    return ForwardSpec((row,), chunks=() if subject.can.steps_agree else steps, positions=positions)
