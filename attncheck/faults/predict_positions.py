"""Predictions for faults of which position a token has.

Axes: B batch, T positions, P cached positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.finding import BEYOND_ROUNDING
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.schedule import scheduled_logits
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.judge.layers import watching
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions, counting
from attncheck.model.inputs import Row
from attncheck.numerics.divergence import beyond, max_abs

OFFSETS = (1, -1, 2, -2, 3, -3, 4, -4)
Rule = Callable[[Row, int, int], list[int]]


def hypotheses(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    """Positions that restart, stand still, are off by a few, count padding, are dropped, or turn by
    another scale.
    """
    subject = trusted.subject
    if subject.can.takes_positions:
        if len(spec.chunks) > 1:
            yield from _on_cache(trusted, spec)
        if isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows):
            yield _told(
                "position-ignores-padding", "", lambda each: counting(len(each.tokens), each.length)
            )
            yield _told("position-ignores-padding", "where they should", _from_mask)
        if spec.positions is not None:
            yield Hypothesis(fault="position-ids-ignored", predict=_left_to_the_model)
    if len(spec.chunks) > 1 and trusted.out_of_reach is None:
        yield Hypothesis(
            fault="rope-scale-switch", predict=scheduled_logits, holds=turned_by_length
        )
        if not subject.can.takes_positions:
            yield Hypothesis(fault="alibi-local", predict=partial(scheduled_logits, local=True))


def turned_by_length(trusted: Trusted) -> bool:
    """Whether the first layer's keys of the same tokens at the same positions differ with the
    length of the call.
    """
    row, half = trusted.subject.inputs.row, trusted.subject.inputs.length // 2
    short, long = (_first_keys(trusted, each)[:, :, :half] for each in (row[:half], row))
    rounding = torch.finfo(long.dtype).eps * max_abs(long)
    return beyond(short, long, BEYOND_ROUNDING * rounding)


def _first_keys(trusted: Trusted, row: Row) -> Tensor:
    seen: list[Tensor] = []

    def watch(call: AttentionCall) -> Any:
        seen.append(call.key_BGSD)
        return call.run()

    with watching(trusted.subject, watch), torch.no_grad():
        trusted.subject.passes.call((row,), use_cache=False)
    return seen[0]


def _on_cache(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    yield from _rules(trusted, spec, columns=False)
    if trusted.out_of_reach is None:
        yield Hypothesis(
            fault="position-restart",
            parameter="whatever the call says",
            predict=_restarted_by_itself,
        )
    if isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows):
        yield from _rules(trusted, spec, columns=True)


def _rules(trusted: Trusted, spec: ForwardSpec, columns: bool) -> Iterator[Hypothesis]:
    """Rules for the positions of later chunks; `columns` counts the padding in them as well."""
    told = partial(_on_schedule, trusted, columns)
    if not columns:
        yield told("position-restart", "", lambda row, before, new: list(range(new)))
    yield told(
        "position-frozen",
        "at the last cached position",
        lambda row, before, new: [row[before - 1]] * new,
    )
    yield told(
        "position-frozen", "at the first new position", lambda row, before, new: [row[before]] * new
    )
    context = trusted.subject.facts.context
    for offset in OFFSETS:
        inside = context is None or spec.length + offset <= context
        if inside and spec.chunks[0] + offset >= 0:
            yield told("position-offset", f"by {offset:+d}", partial(_moved, offset))


def _restarted_by_itself(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Chunk by chunk on our own store: models that drop `position_ids` cannot be told to restart on
    a full forward.
    """
    row = [trusted.origin + position for size in spec.chunks for position in range(size)]
    return scheduled_logits(trusted, spec, positions=(tuple(row),) * len(spec.tokens))


def _moved(offset: int, row: Row, before: int, new: int) -> list[int]:
    return [position + offset for position in row[before : before + new]]


def _on_schedule(
    trusted: Trusted, columns: bool, fault: str, parameter: str, rule: Rule
) -> Hypothesis:
    """`rule` gives the positions of each chunk but the first: of a row of right ones, for P cached
    and T new tokens.
    """

    def positions(spec: ForwardSpec) -> Positions:
        usual = counting(len(spec.tokens), spec.length, trusted.origin)
        told = spec.positions or usual
        rows = zip(told, usual if columns else told, strict=True)
        return tuple(_later(row, counted, spec, trusted.origin, rule) for row, counted in rows)

    said = ", ".join(filter(None, (parameter, "counting the padding" if columns else "")))
    return _told(fault, said, positions)


def _later(row: Row, usual: Row, spec: ForwardSpec, origin: int, rule: Rule) -> Row:
    counted = tuple(position - origin for position in usual)
    first = spec.chunks[0] if spec.chunks else spec.length
    later: list[int] = []
    for size in spec.chunks[1:]:
        later += [origin + position for position in rule(counted, first + len(later), size)]
    return (*row[:first], *later)


def _told(fault: str, parameter: str, positions: Callable[[ForwardSpec], Positions]) -> Hypothesis:
    def change(spec: ForwardSpec) -> Change:
        return Change(positions=positions(spec))

    return Hypothesis(fault=fault, parameter=parameter, change=change, everywhere=True)


def _from_mask(spec: ForwardSpec) -> Positions:
    if not isinstance(spec.mask, Mask2D):
        return counting(len(spec.tokens), spec.length)
    return tuple(_counted(row) for row in spec.mask.rows)


def _counted(row: Row) -> Row:
    """Real tokens from 0; padding gets 1, as generate() gives it."""
    counted, seen = [], 0
    for real in row:
        counted.append(seen if real else 1)
        seen += real
    return tuple(counted)


def _left_to_the_model(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Positions dropped: documents are then told apart by a 4D mask alone."""
    return trusted.logits(replace(spec, positions=None))
