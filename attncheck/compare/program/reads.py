"""Other values or other weights than an operator of the reference reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.program.change import (
    INSTEAD,
    SAME_NUMBERS,
    OpChange,
    change_of,
    is_norm,
    said,
    source,
    where,
)
from attncheck.compare.program.record import Op, Program, Ref

SEVERAL = ("split", "split_with_sizes", "unbind", "chunk")
NEAR = 48
"""How many values before an operator may stand in the place of one that it reads."""


def read_changes(program: Program, at: int) -> Iterator[OpChange]:
    """Every other value that an operator may read, those of its own module first."""
    yield from _parts(program, at)
    yield from _other_inputs(program, at)


def _parts(program: Program, at: int) -> Iterator[OpChange]:
    """Parts of one tensor taken in another order."""
    for slot in program.ops[at].reads:
        near = _through(program, slot)
        if near is None:
            continue
        op = program.ops[near]
        shapes = [program.values[each].shape for each in op.outs]
        for one in range(len(shapes)):
            for two in range(one + 1, min(len(shapes), 8)):
                if shapes[one] != shapes[two]:
                    continue
                outs = list(op.outs)
                outs[one], outs[two] = outs[two], outs[one]
                words = f"parts {one} and {two} of a split exchanged in {where(op)}"
                ops = {near: replace(op, outs=tuple(outs))}
                yield change_of(op, near, name="parts-exchanged", words=words, ops=ops)


def _through(program: Program, slot: int) -> int | None:
    """The split that a value is a part of, only handed on since."""
    at = program.maker(slot)
    for _ in range(16):
        if at is None or program.ops[at].name in SEVERAL or not program.ops[at].reads:
            break
        if program.ops[at].name not in SAME_NUMBERS:
            at = at if program.ops[at].name in ("convolution", "mm", "addmm") else None
            if at is None:
                break
        at = program.maker(program.ops[at].reads[0])
    return at if at is not None and program.ops[at].name in SEVERAL else None


def _other_inputs(program: Program, at: int) -> Iterator[OpChange]:
    """Another value of the same shape in the place of one that is read."""
    op = program.ops[at]
    for place, each in enumerate(op.args):
        if not isinstance(each, Ref):
            continue
        usual, seen = program.values[each.slot], 0
        for before in range(at - 1, -1, -1):
            for slot in program.ops[before].outs:
                value = program.values[slot]
                if slot == each.slot or not _fits(value, usual):
                    continue
                seen += 1
                words = f"the {op.name.strip('_')} in {where(op)} reads "
                words += f"{said(program, Ref(slot))}{INSTEAD}{said(program, each)}"
                args = tuple(Ref(slot) if n == place else a for n, a in enumerate(op.args))
                run = op.run if value.shape == usual.shape else _shaped(op.run, place, usual.shape)
                name = _of_input(program, op, each, slot)
                ops = {at: replace(op, args=args, run=run)}
                yield change_of(op, at, name=name, words=words, ops=ops, cost=2.0)
            if seen >= NEAR:
                break


def _fits(value: Tensor, usual: Tensor) -> bool:
    """Whether one value has the numbers and the last axis that another one has."""
    same = value.dtype == usual.dtype and value.shape[-1:] == usual.shape[-1:]
    if not same or value.numel() != usual.numel() or not value.is_floating_point():
        return False
    return float(value.max()) > float(value.min())


def _shaped(func: Callable[..., Any], place: int, shape: torch.Size) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        fitted = [each.reshape(shape) if n == place else each for n, each in enumerate(args)]
        return func(*fitted, **named)

    return run


def _of_input(program: Program, op: Op, usual: Ref, slot: int) -> str:
    """The name of a fault by what is read: what a norm got, what it gave in place of the sum that
    goes on beside the blocks, or any other value.
    """
    norms = [c for c in program.calls if is_norm(program, c)]
    read, given = (source(program, each) for each in (usual, Ref(slot)))
    if any(_is(program, read, c.output) and _is(program, given, c.given) for c in norms):
        return "norm-missing"
    if op.name == "add" and any(_is(program, given, c.output) for c in norms):
        return "residual"
    return "wrong-input"


def _is(program: Program, at: int | None, slot: int) -> bool:
    return at is not None and at == source(program, Ref(slot))
