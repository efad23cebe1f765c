"""The operation where another way to the same tokens parts from one forward, with its proof.

Axes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from attncheck.observation.operations import Alignment, Key, Operation, Operations, Place

ROUNDS = 8
CANDIDATES = 12
BEHIND = 6
"""So many results behind a place are mended in its stead at most."""
UNSEEN = 32
"""So many places that one forward does not run are kept of a result at most."""
SECONDS = 10.0
"""The search ends after so long."""
Run = Callable[[], object]
Residual = Callable[[tuple[Place, ...]], float]


@final
@dataclass(frozen=True, kw_only=True)
class Parting:
    """A place whose result differs though its arguments do not: in which modules and calls, at
    which tokens, by how much at most.

    `unseen` are keys, the last one last, that led to an argument and that one forward does not
    run; `certain` says that every argument was compared, and `behind` are places whose results
    differ after it in the same module.
    """

    place: Place
    modules: tuple[str, ...]
    calls: tuple[int, ...]
    tokens: tuple[int, ...]
    difference: float
    unseen: tuple[Key, ...]
    certain: bool
    behind: tuple[Place, ...] = ()


@final
@dataclass(frozen=True)
class _Parted:
    operation: Operation
    difference: float
    tokens: tuple[int, ...]
    unseen: tuple[Key, ...]
    certain: bool


@final
@dataclass
class Comparing:
    """The operations of one forward, made by `good`, beside those of the calls that `bad` makes.

    `relative` is the difference that rounding explains, as a share of the largest value.
    """

    model: nn.Module
    good: Run
    bad: Run
    relative: float
    align: Callable[[tuple[int, ...]], Alignment]
    results: dict[tuple[Key, int], Tensor] = field(default_factory=dict)
    often: Counter[Key] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for each in self._recorded(self.good).kept:
            self.results[each.key, self.often[each.key]] = each.result
            self.often[each.key] += 1
        seen = self._recorded(self.bad)
        self.alignment, self.counts = self.align(tuple(seen.sizes)), seen.counts
        self.operations = seen.kept

    def found(self, residual: Residual, budget: float) -> tuple[Parting, float] | None:
        """The first place whose right results, put there, leave no more than the `budget` of the
        `residual`, and what they leave; None where no place does.

        Where a place is no cause, since both ways come to the same later on, what follows from it
        is looked at in the next round.
        """
        until, innocent = time.perf_counter() + SECONDS, set[Place]()
        for _ in range(ROUNDS):
            partings = self._partings(frozenset(innocent))[:CANDIDATES]
            for each in partings:
                for places in ((each.place,), *((place,) for place in each.behind)):
                    if time.perf_counter() > until:
                        return None
                    left = residual(places)
                    if left <= budget:
                        return each, left
            if not partings:
                return None
            innocent |= {each.place for each in partings}
        return None

    def mended(self, places: tuple[Place, ...], run: Callable[[], Tensor]) -> Tensor:
        """logits_BTV of the wrong calls, which `run` makes, with the results of one forward at
        these places.
        """

        def replace(operation: Operation) -> Tensor | None:
            found = self._right(operation) if operation.key[1] in places else None
            if found is None:
                return None
            right, part = found
            mended = operation.result.clone()
            mended[part] = right.to(mended.dtype)
            return mended

        with Operations(self.model, replace).watching():
            return run()

    def _recorded(self, run: Run) -> Operations:
        operations = Operations(self.model)
        with operations.watching():
            run()
        return operations

    def _right(self, operation: Operation) -> tuple[Tensor, tuple[slice, ...]] | None:
        """What one forward has at the tokens of this result, and where they are in it."""
        often = self.often[operation.key]
        if not often:
            return None
        number = self.alignment.number(operation, often, self.counts[operation.call, operation.key])
        right = self.results.get((operation.key, -1 if number is None else number))
        if right is None:
            return None
        parts = self.alignment.parts(right.shape, operation.result.shape, operation.call)
        return None if parts is None else (right[parts[0]], parts[1])

    def _partings(self, innocent: frozenset[Place]) -> list[Parting]:
        """Every place that parts by itself, in the order of execution."""
        groups: dict[Place, list[_Parted]] = {}
        behind: dict[tuple[int, str], list[Place]] = {}
        for parted, by_itself in self._differing(innocent):
            module, place, _ = parted.operation.key
            behind.setdefault((parted.operation.call, module), []).append(place)
            if by_itself:
                groups.setdefault(place, []).append(parted)
        return [_parting(place, group, behind) for place, group in groups.items()]

    def _differing(self, innocent: frozenset[Place]) -> Iterator[tuple[_Parted, bool]]:
        """Operations whose result differs, and whether no argument was seen to."""
        wrong, blind, unseen = set[int](), set[int](), dict[int, tuple[Key, ...]]()
        for each in self.operations:
            inherited = any(one in wrong for one in each.arguments)
            given = [place for one in each.arguments for place in unseen.get(one, ())]
            key = id(each.output)
            certain = not given and blind.isdisjoint(each.arguments)
            wrong.discard(key)
            blind.discard(key)
            unseen.pop(key, None)
            found = self._right(each)
            if found is None:
                blind.add(key)
                if inherited:
                    wrong.add(key)
                if not self.often[each.key]:
                    unseen[key] = tuple(dict.fromkeys((*given, each.key)))[-UNSEEN:]
                continue
            parted = self._compared(each, *found, tuple(dict.fromkeys(given)), certain)
            if parted is not None and each.key[1] not in innocent:
                wrong.add(key)
                yield parted, not inherited

    def _compared(
        self,
        each: Operation,
        right: Tensor,
        part: tuple[slice, ...],
        given: tuple[Key, ...],
        certain: bool,
    ) -> _Parted | None:
        got = each.result[part]
        difference = _difference(right, got)
        slack = self._slack(right)
        if not difference.numel() or float(difference.max()) <= slack:
            return None
        tokens = self.alignment.differing(difference > slack, each)
        return _Parted(each, float(difference.max()), tokens, given, certain)

    def _slack(self, right: Tensor) -> float:
        if not (right.is_floating_point() or right.is_complex()):
            return 0.0
        finite = right[right.isfinite()]
        return self.relative * float(finite.abs().max() if finite.numel() else 1)


def _parting(
    place: Place, group: list[_Parted], behind: dict[tuple[int, str], list[Place]]
) -> Parting:
    first = group[0].operation
    after = behind[first.call, first.key[0]]
    after = after[after.index(place) + 1 :]
    return Parting(
        place=place,
        modules=tuple(dict.fromkeys(each.operation.key[0] for each in group)),
        calls=tuple(dict.fromkeys(each.operation.call for each in group)),
        tokens=tuple(sorted({token for each in group for token in each.tokens})),
        difference=max(each.difference for each in group),
        unseen=max((each.unseen for each in group), key=len),
        certain=group[0].certain,
        behind=tuple(dict.fromkeys(after))[-BEHIND:],
    )


def _difference(right: Tensor, got: Tensor) -> Tensor:
    """The distance of each value; 0 where both are the same infinity."""
    same = (right == got) | (right.isnan() & got.isnan())
    if not right.is_complex():
        right, got = right.double(), got.double()
    return torch.where(same, 0.0, (right - got).abs()).nan_to_num(torch.inf)
