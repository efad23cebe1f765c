"""Predictions for faults of what generate() hands over and takes back.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions, counting
from attncheck.model.inputs import Row
from attncheck.model.provenance import Provenance

Rule = Callable[[int, int], int]


def hypotheses(trusted: Trusted, spec: ForwardSpec, made: Provenance) -> Iterator[Hypothesis]:
    """Positions as they were handed over, a token fed twice, the logits of another position."""
    told = _relative(trusted, spec, made)
    if told is not None and not _same(told, spec):
        said = f"generate() hands over {told[0][0] + trusted.subject.can.first_position} for the first token of the row"
        yield Hypothesis(
            fault="generate-positions", parameter=said, predict=partial(_positioned, told)
        )
    yield Hypothesis(
        fault="logits-to-keep",
        parameter="of the position before",
        predict=partial(_kept_elsewhere, made, _before),
    )
    yield Hypothesis(
        fault="logits-to-keep",
        parameter="the first ones",
        predict=partial(_kept_elsewhere, made, _first),
    )
    if len(spec.chunks) > 1 and spec.chunks[-1] == 1:
        yield Hypothesis(
            fault="generate-repeats-token",
            parameter="in the first step",
            predict=partial(_fed_again, 1),
        )
        yield Hypothesis(
            fault="generate-repeats-token",
            parameter="in every step",
            predict=partial(_fed_again, spec.length),
        )


def _relative(trusted: Trusted, spec: ForwardSpec, made: Provenance) -> Positions | None:
    """The positions that were handed over, counted from the model's own first one."""
    row = made.told(spec.length) if len(spec.tokens) == 1 else None
    if row is None or not trusted.subject.can.takes_positions:
        return None
    return (tuple(position - trusted.subject.can.first_position for position in row),)


def _same(told: Positions, spec: ForwardSpec) -> bool:
    """Whether the real tokens were given the positions that they ought to have."""
    right = spec.positions or counting(1, spec.length)
    real = spec.mask.rows[0] if isinstance(spec.mask, Mask2D) else (1,) * spec.length
    return all(
        one == other for one, other, there in zip(told[0], right[0], real, strict=True) if there
    )


def _positioned(told: Positions, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    return trusted.logits(spec, Change(positions=told))


def _before(column: int, first: int) -> int:
    return column - 1


def _first(column: int, first: int) -> int:
    return first


def _kept_elsewhere(made: Provenance, rule: Rule, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """`rule` gives the column whose logits are taken, for a column and the first one of its forward
    that can be kept.
    """
    if made.columns is None:
        raise Unsupported("every column is kept")
    logits_BTV = trusted.logits(spec)
    starts = [start for start in (0, *itertools.accumulate(spec.chunks)) if start < spec.length]
    together = not made.handed and not spec.chunks
    moved_BTV = logits_BTV.clone()
    for number, column in enumerate(made.columns):
        start = max(each for each in starts if each <= column)
        source = rule(column, start + number * together)
        moved_BTV[:, column] = logits_BTV[:, source if source >= start else column]
    return moved_BTV


def _fed_again(times: int, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Single steps are fed the token before once more, on top of what the cache holds: the row is
    longer by each of them.
    """
    starts = list(itertools.accumulate(spec.chunks[:-1]))
    steps = [start for start, size in zip(starts, spec.chunks[1:], strict=True) if size == 1][
        :times
    ]
    order, extra, kept = [], [], []
    for t in range(spec.length):
        order += [t - 1, t] if t in steps else [t]
        extra += [1, 0] if t in steps else [0]
        kept.append(len(order) - 1)
    later = list(itertools.accumulate(extra))
    mask = spec.mask
    longer = ForwardSpec(
        _in_order(spec.tokens, order),
        positions=spec.positions
        and tuple(
            tuple(row[t] + n for t, n in zip(order, later, strict=True)) for row in spec.positions
        ),
        mask=Mask2D(_in_order(mask.rows, order)) if isinstance(mask, Mask2D) else mask,
    )
    return trusted.logits(longer)[:, kept]


def _in_order(rows: tuple[Row, ...], order: list[int]) -> tuple[Row, ...]:
    return tuple(tuple(row[t] for t in order) for row in rows)
