"""Changes whose number the other model shows: a factor, or the rows of a table.

Axes: C columns, N rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.flow import FlowTape
from attncheck.compare.program.change import (
    OpChange,
    before_softmax,
    change_of,
    of_scale,
    said,
    source,
    where,
)
from attncheck.compare.program.record import Program, Ref

TWO = ("add", "sub", "mul", "div")


def measured_changes(program: Program, at: int, tape: FlowTape, slack: float) -> Iterator[OpChange]:
    """Every change that the other model's values suggest."""
    yield from _multiples(program, at, tape, slack)
    yield from _rows(program, at, tape)


def _multiples(program: Program, at: int, tape: FlowTape, slack: float) -> Iterator[OpChange]:
    """A value, or one that is read, times a number that the other model shows."""
    op = program.ops[at]
    if not op.outs:
        return
    for factor in tape.factors(program.values[op.outs[0]], slack)[:3]:
        number = float(f"{factor:.9g}")
        name = of_scale(program, at)
        words = f"the {op.name.strip('_')} in {where(op)} times {number:.6g}"
        run = _times(op.run, number)
        yield change_of(op, at, name=name, words=words, ops={at: replace(op, run=run)})
    if op.name not in (*TWO, "_softmax"):
        return
    for place, each in enumerate(op.args[:2]):
        value = program.values[each.slot] if isinstance(each, Ref) else None
        for factor in tape.factors(value, slack)[:3] if value is not None else ():
            number = float(f"{factor:.9g}")
            name = of_scale(program, at)
            words = f"{said(program, each)} times {number:.6g} in {where(op)}"
            run = _argument_times(op.run, place, number)
            yield change_of(op, at, name=name, words=words, ops={at: replace(op, run=run)})


def _times(func: Callable[..., Any], factor: float) -> Callable[..., Any]:
    return lambda *args, **named: func(*args, **named) * factor


def _argument_times(func: Callable[..., Any], place: int, factor: float) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        scaled = [each * factor if n == place else each for n, each in enumerate(args)]
        return func(*scaled, **named)

    return run


def _rows(program: Program, at: int, tape: FlowTape) -> Iterator[OpChange]:
    """Other rows of a table than the reference looks up, as the other model shows them."""
    for near in (at, *(_sources(program, at))):
        op = program.ops[near]
        if op.name not in ("embedding", "index_select") or not isinstance(op.args[0], Tensor):
            continue
        table_NC, index = op.args[0].double(), op.args[1]
        ids = program.values[index.slot] if isinstance(index, Ref) else index
        for other in (*_indices(table_NC, ids, tape), *_of_one_row(table_NC, ids, tape)):
            moved = _shift(ids, other)
            said = f"rows that lie {moved:+d} places away" if moved else "other rows"
            name = program.names.get(id(op.args[0]), "a table")
            what = "position-offset" if moved else "table-rows"
            what = "relative-bias" if before_softmax(program, near) else what
            words = f"{said} of {name} in {where(op)}"
            changed = replace(op, args=(op.args[0], other, *op.args[2:]))
            yield change_of(op, near, name=what, words=words, ops={near: changed})


def _sources(program: Program, at: int) -> list[int]:
    found = (source(program, Ref(slot)) for slot in program.ops[at].reads)
    return [each for each in found if each is not None and each != at]


def _of_one_row(table_NC: Tensor, ids: Tensor, tape: FlowTape) -> Iterator[Tensor]:
    """The same where all sequences look up the same rows and the other model does so once."""
    if ids.ndim > 1 and len(ids) > 1 and bool((ids == ids[:1]).all()):
        for other in _indices(table_NC, ids[0], tape):
            yield other.expand(ids.shape).clone()


def _indices(table_NC: Tensor, ids: Tensor, tape: FlowTape) -> Iterator[Tensor]:
    """The rows that other values of this size hold, in the layout of the ids."""
    width = table_NC.shape[-1]
    for value in tape.after(0, ids.numel() * width):
        kept = value.kept
        assert kept is not None
        for layout in (kept, kept.movedim(1, -1) if kept.ndim > 2 else kept):
            if layout.shape[-1] != width or layout.numel() != ids.numel() * width:
                continue
            rows = layout.reshape(-1, width)
            apart = torch.cdist(rows, table_NC)
            nearest = apart.min(-1)
            if float(nearest.values.max()) > 1e-6 * float(table_NC.abs().max()):
                continue
            other = nearest.indices.view(ids.shape).to(ids)
            if not torch.equal(other, ids):
                yield other
                return


def _shift(ids: Tensor, other: Tensor) -> int:
    """By how much all indices differ, or by how many places they stand elsewhere; else 0."""
    apart = (other - ids).flatten()
    if bool((apart == apart[0]).all()):
        return int(apart[0])
    for step in (1, 2):
        if torch.equal(other[..., step:], ids[..., :-step]):
            return -step
        if torch.equal(other[..., :-step], ids[..., step:]):
            return step
    return 0
