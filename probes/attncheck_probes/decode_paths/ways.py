"""The ways of passing positions to chunks on a cache, and when one way is proven to be another."""

from __future__ import annotations

from dataclasses import replace

import torch

from attncheck.probing import ForwardSpec, Subject, all_ones, counting

Schedule = tuple[int, ...]
WAYS = ("implicit positions", "explicit positions", "implicit positions, 2D mask")
AS_IMPLICIT = "as with implicit positions: other schedules gave the same logits to the bit"


def fed(subject: Subject, schedule: Schedule, way: str) -> ForwardSpec:
    """The main row in this schedule, called in this way.

    Raises:
        Unsupported: the model cannot be called this way.
    """
    tokens = subject.inputs.tokens
    spec = ForwardSpec(tokens, chunks=schedule)
    if way == WAYS[1]:
        subject.can.takes_positions.require()
        return replace(spec, positions=counting(1, spec.length))
    if way == WAYS[2]:
        subject.can.mask_2d.require()
        return replace(spec, mask=all_ones(tokens))
    return spec


def proof(length: int) -> tuple[Schedule, ...]:
    """Schedules with a prefill, a chunk and a step in front of, between and behind each other."""
    half, third = length // 2, length // 3
    return (half, length - half), (length - 1, 1), (third, 1, 2, length - third - 3)


def as_implicit(subject: Subject, way: str, spec: ForwardSpec) -> bool:
    """Whether a way gave the logits of implicit positions to the bit in all schedules of `proof`,
    which ran in both ways: then the model does the same in any schedule that ran with implicit
    positions.
    """
    proven = proof(spec.length)
    if spec.chunks in proven or not subject.passes.knows(spec):
        return False
    pairs = [tuple(fed(subject, each, which) for which in (way, WAYS[0])) for each in proven]
    if not all(subject.passes.knows(each) for pair in pairs for each in pair):
        return False
    return all(torch.equal(*map(subject.logits, pair)) for pair in pairs)
