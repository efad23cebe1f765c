"""Weights that are other ones than the reference has in their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from attncheck.compare.program.change import (
    SAME_NUMBERS,
    OpChange,
    change_of,
)
from attncheck.compare.program.record import NUMBER, Program


def weight_changes(program: Program, at: int) -> Iterator[OpChange]:
    """Every change of the weights that an operator reads."""
    yield from _weights(program, at)
    yield from _modules(program, at)


def _weights(program: Program, at: int) -> Iterator[OpChange]:
    """A weight that is transposed, of another sign, or another one of the model."""
    for near in _upstream(program, at):
        each = program.ops[near]
        for place, weight in enumerate(each.args):
            if not isinstance(weight, Tensor) or id(weight) not in program.names:
                continue
            name = program.names[id(weight)]
            for kind, words, other in _instead(program, name, weight):
                args = tuple(other if n == place else a for n, a in enumerate(each.args))
                changed = {near: replace(each, args=args)}
                yield change_of(each, near, name=kind, words=words, ops=changed, cost=1.2)


def _upstream(program: Program, at: int) -> list[int]:
    """An operator, and those behind what it reads as far as one linear map."""
    found, open_ = [at], [(slot, False) for slot in program.ops[at].reads]
    while open_:
        slot, mapped = open_.pop()
        before = program.maker(slot)
        if before is None or before in found:
            continue
        linear = program.ops[before].name in ("mm", "addmm")
        if program.ops[before].name in SAME_NUMBERS or (linear and not mapped):
            found.append(before)
            open_ += [(each, mapped or linear) for each in program.ops[before].reads]
    return found


def _modules(program: Program, at: int) -> Iterator[OpChange]:
    """The weights of another module of the same shapes in the place of those of one."""
    home = program.ops[at].module
    own = _weights_of(program, home)
    if len(own) < 2:
        return
    for other in dict.fromkeys(name.rpartition(".")[0] for name in program.names.values()):
        theirs = _weights_of(program, other)
        same = own.keys() == theirs.keys() and all(
            own[each].shape == theirs[each].shape for each in own
        )
        if other == home or not same or not _related(other, home):
            continue
        swap = {id(own[each]): theirs[each] for each in own}
        ops = {
            n: replace(op, args=tuple(swap.get(id(a), a) for a in op.args))
            for n, op in enumerate(program.ops)
            if op.module == home and any(id(a) in swap for a in op.args)
        }
        if ops:
            words = f"the weights of {other} in {home}"
            op = program.ops[at]
            yield change_of(op, at, name="weight-exchanged", words=words, ops=ops, cost=1.2)


def _weights_of(program: Program, module: str) -> dict[str, Tensor]:
    """The weights that are a module's own, by their names in it."""
    every = program.weights.items()
    return {n.rpartition(".")[2]: each for n, each in every if n.rpartition(".")[0] == module}


def _related(one: str, other: str) -> bool:
    """Whether two modules stand in one, or are the same of two layers."""
    beside = one.rpartition(".")[0] == other.rpartition(".")[0]
    return beside or NUMBER.sub("*", one) == NUMBER.sub("*", other)


def _instead(program: Program, name: str, weight: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    if weight.ndim == 2 and weight.shape[0] == weight.shape[1]:
        yield "weight-transposed", f"{name} transposed", weight.T
    yield "weight-sign", f"{name} of the other sign", -weight
    for theirs, other in program.weights.items():
        if theirs == name or other.shape != weight.shape:
            continue
        if _related(theirs.rpartition(".")[0], name.rpartition(".")[0]):
            yield "weight-exchanged", f"{name} is {theirs}", other
