"""Borders that the main row is too short for: a window of 4,096 tokens, a rotary switch at 8,192.

Each is crossed once: one forward of a row that ends behind it, and one prefill up to it that is
kept on the cache and continued in steps and in one chunk. Logits are kept around the border only.

Axes: B batch, T positions, N kept positions, V vocabulary.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from attncheck.model.compat import cache_of
from attncheck.model.facts import ROPE_SWITCH, Boundary
from attncheck.model.inputs import Row
from attncheck.model.signature import takes_argument, with_fields
from attncheck.model.subject import Subject
from attncheck.numerics.budget import Budget, measure_budget

BEFORE, BEHIND = 4, 8
"""Tokens that are fed in front of a border on the kept cache, and behind it."""
TIMED = 128
PASSES = 2
AFFORDABLE = 30.0
"""Seconds up to which borders are crossed on an accelerator without being asked."""
KEEP = "logits_to_keep"


@final
@dataclass(frozen=True, kw_only=True)
class Border:
    """A border, and the row that crosses it: the prefill ends at `start`."""

    boundary: Boundary
    row: Row

    @property
    def start(self) -> int:
        """How many tokens the prefill has."""
        return len(self.row) - BEFORE - BEHIND

    def __str__(self) -> str:
        return f"{self.boundary.kind} ({self.boundary.length})"


def borders(subject: Subject) -> tuple[Border, ...]:
    """The borders that the main row does not reach, and that fit into the context."""
    inputs, context = subject.inputs, subject.facts.context
    found = []
    for each in dict.fromkeys(inputs.unreached):
        length = each.length + BEHIND
        if each.length > BEFORE and (each.kind == ROPE_SWITCH or length <= (context or length)):
            drawn = inputs.fresh(length - inputs.length, salt=83)
            found.append(Border(boundary=each, row=inputs.row + drawn))
    return tuple(found)


def crosses(subject: Subject) -> bool:
    """Whether borders are crossed: where that was asked for, and where it costs little."""
    wanted = subject.settings.reach
    if wanted is not None or not borders(subject):
        return bool(wanted)
    return subject.device.type == "cuda" and seconds(subject) <= AFFORDABLE


def seconds(subject: Subject) -> float:
    """About how long it takes to cross all borders, from one forward of a short row. It is timed
    once: what is printed and what is decided must not differ.
    """
    loaded = subject.loaded
    if loaded.seconds_per_operation is None:
        loaded.seconds_per_operation = _timed(subject)
    operations = sum(_operations(subject, len(each.row)) for each in borders(subject))
    return PASSES * loaded.seconds_per_operation * operations


def _timed(subject: Subject) -> float:
    inputs = subject.inputs
    row = (inputs.row * TIMED)[: min(TIMED, inputs.room)]
    with torch.no_grad():
        subject.passes.call((row[:8],), use_cache=False)
        started = _clock(subject)
        subject.passes.call((row,), use_cache=False)
    return (_clock(subject) - started) / _operations(subject, len(row))


def _clock(subject: Subject) -> float:
    """Seconds; on processors those that each core computed, whatever else the machine does."""
    if subject.device.type == "cuda":
        torch.cuda.synchronize(subject.device)
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


def _operations(subject: Subject, length: int) -> float:
    """Multiplications of one forward: weights, and scores of every pair of positions."""
    facts = subject.facts
    width = (facts.heads or 1) * (facts.head_dim or 64)
    return facts.parameters * length + 2.0 * (facts.layers or 1) * width * length**2


def in_words(subject: Subject) -> tuple[str, ...]:
    """What the main row does not reach, and what it takes to reach it; a line for each border."""
    size = f"input ({subject.inputs.length} tokens)"
    lines = [
        f"{size} is shorter than the {each.kind} ({each.length})"
        for each in subject.inputs.unreached
    ]
    if not lines or not borders(subject):
        return tuple(lines)
    crossed, cost = crosses(subject), seconds(subject)
    what = "is crossed" if crossed else "--reach crosses it"
    lines[-1] += f"; {what} in about {cost:.0f} s" if cost >= 1 else f"; {what} within a second"
    return tuple(lines)


@final
@dataclass
class Crossing:
    """One border, crossed: logits_BNV of the last positions in one forward, and the kept cache."""

    subject: Subject
    border: Border

    def __post_init__(self) -> None:
        self.subject.can.steps.require()
        row, start = self.border.row, self.border.start
        self.want_BNV = self._ends(row, BEFORE + BEHIND, use_cache=False)[0]
        self.cache = self._ends(row[:start], 1, use_cache=True)[1]

    def _ends(self, row: Row, number: int, use_cache: bool) -> tuple[Tensor, Any]:
        """logits_BNV of the last positions of one forward, and the cache that it leaves."""
        subject, known = self.subject, takes_argument(self.subject.model, KEEP)
        subject.loaded.count(len(row))
        ids_BT = subject.passes.ids((row,))
        call = subject.forward_adapter.arguments(ids_BT, use_cache=use_cache)
        with torch.no_grad(), subject.numerics():
            output = with_fields(subject.model(**call, **({KEEP: number} if known else {})))
        return output.logits[:, -number:].clone(), cache_of(output)

    def continued(self, chunks: tuple[int, ...]) -> Tensor:
        """logits_BNV of what follows the prefill, in chunks on a copy of its cache."""
        cache, start, parts = copy.deepcopy(self.cache), self.border.start, []
        with torch.no_grad():
            for size in chunks:
                fed = (self.border.row[start : start + size],)
                reply = self.subject.passes.call(fed, cache=cache, use_cache=True, before=start)
                cache, start = reply.cache, start + size
                parts.append(reply.logits_BTV)
        return torch.cat(parts, 1).detach()

    def budget(self, chunks: tuple[int, ...], plain_BNV: Tensor) -> Budget:
        """What rounding does to the continuation, and at least what it does to the main row."""
        subject = self.subject
        found = measure_budget(
            lambda: self.continued(chunks), plain_BNV, subject.dtype_name, subject.numerics
        )
        return max(found, subject.budget, key=lambda each: each.value)
