"""OpChange the operators of a reference until another model's logits come out.

Where the other model no longer has a value of the reference, the changes of the operator that
computes it are tried; what brings out more of the other model's values is kept, in every layer that
needs it. Equal logits at the end are the proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from attncheck.compare.flow import fingerprint
from attncheck.compare.program.change import OpChange
from attncheck.compare.program.changes import changes_at
from attncheck.compare.program.record import Op, Program
from attncheck.compare.stage import Port

FIRST = 6
"""How many operators are tried at which the other model's values end."""
LOOKED = 8
"""Of the values behind a change so many are looked for before it is given up."""
Key = tuple[str, str]
MOST = 6
"""The most different faults."""
LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@final
@dataclass(eq=False)
class Standing:
    """A program and which of its values the other model has."""

    program: Program
    port: Port
    found: dict[int, bool] = field(default_factory=dict)
    prints: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        for at, op in enumerate(self.program.ops):
            self._look(at, op, self.program.values)
        self.reached = self._reached()

    def _look(self, at: int, op: Op, values: Mapping[int, Tensor]) -> None:
        value = self.sized(op, values)
        if value is not None:
            self.found[at] = bool(self.port.tape.find(value, self.port.slack))
            self.prints.append(fingerprint(value))

    def sized(self, op: Op, values: Mapping[int, Tensor]) -> Tensor | None:
        """The first value of an operator that is large enough to be known again."""
        each = values[op.outs[0]] if op.outs else None
        if each is None or not each.is_floating_point() or each.numel() < self.port.tape.least:
            return None
        if not bool(torch.isfinite(each).all()):
            return None
        return each if float(each.max()) > float(each.min()) else None  # zeros are everywhere

    def _reached(self) -> list[bool]:
        """Whether the other model has the value of an operator, or everything that follows from it
        in the first layer that reads it: two models cut their sums and products otherwise.
        """
        readers: dict[int, list[int]] = {}
        for at, op in enumerate(self.program.ops):
            for slot in dict.fromkeys(op.reads):
                before = self.program.maker(slot)
                if before is not None:
                    readers.setdefault(before, []).append(at)
        reached = [True] * len(self.program.ops)
        for at in range(len(reached) - 1, -1, -1):
            following = readers.get(at, [])
            layer = layer_of(self.program.ops[following[0]].module) if following else None
            near = [n for n in following if layer_of(self.program.ops[n].module) == layer]
            last = self.program.logits in self.program.ops[at].outs
            known = self.found.get(at, False)
            reached[at] = known or (all(reached[n] for n in near) and not last)
        return reached

    @property
    def count(self) -> int:
        """How many values the other model has."""
        return sum(self.found.values())

    @property
    def proven(self) -> bool:
        """Whether the logits are those of the other model."""
        return self.port.same_logits(self.logits)

    @property
    def logits(self) -> Tensor:
        """The program's own logits."""
        return self.program.values[self.program.logits].detach().cpu().double()

    def ends(self) -> list[int]:
        """The operators at which the other model's values end, in order."""
        found = []
        for at, op in enumerate(self.program.ops):
            if self.reached[at] or at not in self.found:
                continue
            before = [self.program.maker(slot) for slot in op.reads]
            if not before or any(each not in self.found or self.reached[each] for each in before):
                found.append(at)
        return found

    def known(self, value: Tensor) -> bool:
        """Whether the reference had these numbers before."""
        print_ = fingerprint(value)
        if not self.prints:
            return False
        every = torch.stack(self.prints)
        return bool(((every - print_).abs() <= 1e-9 * print_.abs().clamp_min(1e-300)).all(-1).any())

    def promising(self, ops: Mapping[int, Op]) -> bool:
        """Whether the other model has a value that comes out of changed operators and is new."""
        looked = 0
        try:
            for at, fresh in self.program.rerun(ops):
                value = self.sized(ops.get(at, self.program.ops[at]), fresh)
                if value is None:
                    continue
                if self.port.tape.find(value, self.port.slack):
                    if not self.known(value):
                        return True
                    continue
                looked += 1
                if looked > LOOKED:
                    return False
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
        return False

    def after(self, ops: Mapping[int, Op]) -> Standing | None:
        """The standing after a change; None where it cannot be computed."""
        try:
            fresh = list(self.program.rerun(ops))[-1][1]
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None
        return Standing(self.program.with_changes(ops, fresh), self.port)


@final
@dataclass(frozen=True, eq=False)
class Found:
    """One fault: the change as it was made first, and the module of every place that has it."""

    change: OpChange
    places: tuple[str, ...]


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """The faults in order, the logits' distance with all of them put in, and the module at which
    the search stopped; "" at the end.
    """

    faults: tuple[Found, ...]
    residual: float
    stopped: str
    begun: bool


def search(program: Program, port: Port) -> Outcome:
    """The changes that make a reference another model."""
    standing, found = Standing(program, port), dict[Key, Found]()
    begun = standing.count > 0
    while not standing.proven:
        best = _repeated(standing, found) or _best(standing)
        if best is None or (best[0].key not in found and len(found) == MOST):
            break
        change, standing = best
        place = standing.program.ops[change.at].module
        known = found.get(change.key, Found(change, ()))
        found[change.key] = replace(known, places=(*known.places, place))
    ends = standing.ends()
    stopped = "" if standing.proven or not ends else standing.program.ops[ends[0]].module
    return Outcome(tuple(found.values()), port.distance(standing.logits), stopped, begun)


def _after(standing: Standing, change: OpChange) -> Standing | None:
    """The standing after a change that brings out more of the other model's values."""
    if not standing.promising(change.ops):
        return None
    after = standing.after(change.ops)
    return after if after is not None and (after.proven or after.count > standing.count) else None


def _repeated(standing: Standing, found: dict[Key, Found]) -> tuple[OpChange, Standing] | None:
    """A change that other places needed, where it is needed again."""
    for at in standing.ends()[:FIRST] if found else ():
        for change in _changes(standing, at):
            after = _after(standing, change) if change.key in found else None
            if after is not None:
                return change, after
    return None


def _best(standing: Standing) -> tuple[OpChange, Standing] | None:
    """The change that brings out most values at the first operator where one does."""
    for at in standing.ends()[:FIRST]:
        able = ((each, _after(standing, each)) for each in _changes(standing, at))
        tried = [(change, after) for change, after in able if after is not None]
        if tried:
            return max(tried, key=lambda each: (each[1].proven, each[1].count, -each[0].cost))
    return None


def _changes(standing: Standing, at: int) -> Iterator[OpChange]:
    return changes_at(standing.program, at, standing.port.tape, standing.port.slack)


def layer_of(module: str) -> int | None:
    """The number of the layer that a module belongs to."""
    match = LAYER.search(module)
    return int(match.group(1)) if match else None
