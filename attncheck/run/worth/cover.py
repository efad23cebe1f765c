"""Choose the smallest set of questions that catches nearly all recorded faults.

Greedy: the question that catches most new faults for its new forwards comes next. Forwards that
several questions share are counted once; a probe costs what it asks in any case, and its control.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from attncheck.run.worth.matrix import Asked, FaultRow, Matrix

Catches = dict[Asked, set[int]]
SHARE = 0.97
"""The part of the recorded faults that the chosen questions must catch."""


@final
@dataclass(frozen=True)
class Ranked:
    """A question with its place in the order of worth: how many faults nothing before it catches,
    and how many forwards nothing before it runs. Where nothing ran before it takes `alone`.
    """

    probe: str
    question: str
    new: int
    forwards: int
    alone: int
    catches: int
    chosen: bool = False

    @property
    def asked(self) -> Asked:
        """The probe and the question."""
        return self.probe, self.question


def ranked(matrix: Matrix, share: float = SHARE) -> list[Ranked]:
    """Every question in the order of worth per forward, the chosen ones first: what catches
    everything, less what pays least as long as this share is caught, each exchanged for one that
    is cheaper beside the others.
    """
    catches = _catches(matrix.caught)
    order = _order(matrix, catches, [*catches])
    cover = Cover(matrix, catches, share * len(matrix.caught))
    kept = cover.exchanged(cover.pruned([each.asked for each in order if each.new]))
    chosen = [replace(each, chosen=True) for each in _order(matrix, catches, kept)]
    names = {each.asked for each in chosen}
    return [*chosen, *(each for each in order if each.asked not in names)]


def _order(matrix: Matrix, catches: Catches, questions: Iterable[Asked]) -> list[Ranked]:
    """These questions, each time the one that catches most new faults for its new forwards."""
    open_ = {asked for asked in questions if asked in matrix.costs}
    left, spent = set().union(*catches.values()) if catches else set(), Spent(matrix)
    order: list[Ranked] = []
    while open_:
        best = max(sorted(open_), key=lambda asked: _worth(catches[asked], left, spent.more(asked)))
        open_.remove(best)
        new, forwards = catches[best] & left, spent.take(best)
        left -= new
        alone = matrix.costs[best].forwards
        order.append(Ranked(*best, len(new), forwards, alone, catches=len(catches[best])))
    return order


@final
@dataclass(frozen=True)
class Cover:
    """Sets of questions that catch at least so many faults, and what they cost."""

    matrix: Matrix
    catches: Catches
    least: float

    def pruned(self, kept: list[Asked]) -> list[Asked]:
        """Less one question after the other, each time the one with the most forwards for the
        faults that nothing else in the set catches.
        """
        while True:
            smaller = ([each for each in kept if each != asked] for asked in kept)
            free = [some for some in smaller if self._caught(some) >= self.least]
            if not free:
                return kept
            kept = max(free, key=partial(self._saved, kept))

    def exchanged(self, kept: list[Asked]) -> list[Asked]:
        """With single questions exchanged for cheaper ones until none is left."""
        found = kept
        for asked in kept:
            rest = [each for each in found if each != asked]
            possible = [
                [*rest, other]
                for other in sorted(self.catches)
                if other not in found and other in self.matrix.costs
            ]
            enough = [some for some in possible if self._caught(some) >= self.least]
            best = min(enough, key=partial(asked_forwards, self.matrix), default=found)
            if asked_forwards(self.matrix, best) < asked_forwards(self.matrix, found):
                found = best
        return found if found == kept else self.exchanged(self.pruned(found))

    def _saved(self, before: Sequence[Asked], after: Sequence[Asked]) -> float:
        """The forwards that a smaller set saves for each fault that it loses."""
        forwards = asked_forwards(self.matrix, before) - asked_forwards(self.matrix, after)
        return forwards / ((self._caught(before) - self._caught(after)) or 0.5)

    def _caught(self, questions: Sequence[Asked]) -> int:
        return len(set().union(*(self.catches[asked] for asked in questions)))


def asked_forwards(matrix: Matrix, questions: Sequence[Asked]) -> int:
    """What some questions cost together, each probe with a control."""
    spent = Spent(matrix)
    return sum(map(spent.take, questions)) + spent.controls


def _worth(catches: set[int], left: set[int], forwards: int) -> tuple[float, float]:
    """New faults per forward first; then all that it catches."""
    price = max(1, forwards)
    return len(catches & left) / price, len(catches) / price


def _catches(rows: Sequence[FaultRow]) -> Catches:
    found: Catches = {}
    for number, row in enumerate(rows):
        for asked in row.caught:
            if asked[1]:
                found.setdefault(asked, set()).add(number)
    return found


@final
class Spent:
    """The forwards that a growing set of questions costs. `controls` are those of one control for
    each probe, asked its cheapest question: with a fault injected nothing is shared.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.costs = matrix.costs
        self.shared: set[tuple[str, str]] = set()
        self.cheapest: dict[str, int] = {}

    @property
    def controls(self) -> int:
        """The forwards of all controls."""
        return sum(self.cheapest.values())

    def more(self, asked: Asked) -> int:
        """The forwards that one more question would add, without controls."""
        cost = self.costs[asked]
        own = cost.own
        always = self.costs.get((asked[0], ""))
        if asked[0] in self.cheapest and always is not None:
            own = max(0, own - always.own)
        here = ((cost.target, name) for name in cost.shared)
        return own + sum(
            cost.shared[name] for target, name in here if (target, name) not in self.shared
        )

    def take(self, asked: Asked) -> int:
        """Add a question; the forwards that it added."""
        forwards, cost = self.more(asked), self.costs[asked]
        self.shared.update((cost.target, name) for name in cost.shared)
        usual = self.cheapest.get(asked[0], cost.under_fault)
        self.cheapest[asked[0]] = min(usual, cost.under_fault)
        return forwards


def caught_by(rows: Iterable[FaultRow], questions: Iterable[Asked]) -> list[bool]:
    """Whether each fault is caught by at least one of these questions."""
    asked = set(questions)
    return [bool(asked.intersection(row.caught)) for row in rows]
