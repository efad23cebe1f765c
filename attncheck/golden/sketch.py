"""Sketches: a few numbers that stand for a module's output over a whole forward.

A sketch is linear in the output, so that the difference of two sketches is the sketch of the
difference, and its size estimates the norm of the difference. The positions are summed with random
signs in `GROUPS` stretches of T, which say where a difference begins.

Axes: B batch, T positions, G stretches of T, K numbers kept for each position, E events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from attncheck.numerics.module_outputs import KEPT, Event, ModuleOutputs

GROUPS = 4
SEED = 97
NUMBERS = GROUPS * KEPT
"""Numbers in a sketch."""


@final
@dataclass(frozen=True)
class Sketches:
    """The sketches of one forward by event, in the order of execution, and the norms (E, G) of what
    they stand for. `prints` are the fingerprints at real tokens, as long as they are in memory.
    """

    events: tuple[Event, ...]
    values_EGK: Tensor
    norms_EG: Tensor
    prints: Mapping[Event, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def at(self, event: Event) -> Tensor | None:
        """The sketch (G, K) of one event; None where there is none."""
        index = self._index.get(event)
        return None if index is None else self.values_EGK[index]

    @cached_property
    def _index(self) -> Mapping[Event, int]:
        return {event: number for number, event in enumerate(self.events)}

    def joined(self, other: Sketches) -> Sketches:
        """These and then others."""
        return Sketches(
            (*self.events, *other.events),
            torch.cat([self.values_EGK, other.values_EGK]),
            torch.cat([self.norms_EG, other.norms_EG]),
            {**self.prints, **other.prints},
        )


def sketches_of(found: Mapping[Event, Tensor]) -> Sketches:
    """The sketches of fingerprints (B, T, K) at real tokens; those under padding are zero."""
    values = [sketch(print_BTK) for print_BTK in found.values()]
    sums = [norms(print_BTK) for print_BTK in found.values()]
    empty_EGK = torch.zeros(0, GROUPS, KEPT, dtype=torch.float64)
    return Sketches(
        tuple(found),
        torch.stack(values) if values else empty_EGK,
        torch.stack(sums) if sums else empty_EGK[..., 0],
        found,
    )


def sketches(outputs: ModuleOutputs, real_BT: Tensor) -> Sketches:
    """The sketches of what modules gave at real tokens. What enters a module is left out where
    another module gave exactly this: it is there already.
    """
    found: dict[Event, Tensor] = {}
    seen: set[bytes] = set()
    for event, output in outputs.items():
        print_BTK = at_real(output.print_BTK, real_BT)
        data = print_BTK.numpy().tobytes()
        if event[1] == "out" or data not in seen:
            found[event] = print_BTK
        seen.add(data)
    return sketches_of(found)


def at_real(print_BTK: Tensor, real_BT: Tensor) -> Tensor:
    """A fingerprint (B, T, K) in float64 with zeros under padding, which may hold anything; numbers
    of wider fingerprints are added up K by K.
    """
    folded_BTK = print_BTK.double()
    if folded_BTK.shape[-1] != KEPT:
        folded_BTK = folded_BTK.reshape(*real_BT.shape, -1, KEPT).sum(-2)
    return torch.where(real_BT[..., None], folded_BTK, 0.0)


def sketch(print_BTK: Tensor) -> Tensor:
    """The sketch (G, K) of a fingerprint."""
    batch, length, _ = print_BTK.shape
    sums_TK = (print_BTK * _signs(batch, length)[..., None]).sum(0)
    return torch.stack([sums_TK[start:stop].sum(0) for start, stop in stretches(length)])


def norms(print_BTK: Tensor) -> Tensor:
    """The norm (G) of what a fingerprint stands for, in each stretch of T."""
    squares_T = print_BTK.square().sum((0, 2)) / KEPT
    return torch.stack([squares_T[a:b].sum().sqrt() for a, b in stretches(print_BTK.shape[1])])


def stretches(length: int) -> tuple[tuple[int, int], ...]:
    """The first position of each stretch of T, and the one behind its last."""
    ends = [length * number // GROUPS for number in range(GROUPS + 1)]
    return tuple(pairwise(ends))


def _signs(batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, 2, (batch, length), generator=generator).double() * 2 - 1


def sizes(sketch_EGK: Tensor) -> Tensor:
    """The norms (E, G) that sketches stand for, to within a third."""
    return sketch_EGK.square().sum(-1).div(KEPT).sqrt()
