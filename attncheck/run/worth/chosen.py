"""The order of worth of all questions, and the chosen ones, as `selftest --cases` wrote them into
the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import final

from attncheck.run.worth.cover import Ranked, ranked
from attncheck.run.worth.matrix import FaultRow, Matrix

FILE = Path(__file__).with_name("chosen.json")
USUAL = 4.0
"""Forwards of a question whose cost was never measured."""


@final
@dataclass(frozen=True)
class Chosen:
    """The recorded order; `caught` holds for each recorded fault the places in it of the questions
    that catch it. And the controls that the chosen questions of each probe catch: which one
    notices each for the fewest forwards, the cheapest control first.
    """

    order: tuple[Ranked, ...]
    controls: dict[str, dict[str, str]]
    caught: dict[str, list[int]] = field(default_factory=dict)

    def probes(self, names: Sequence[str], quick: bool) -> list[str]:
        """Those of the named probes that have a chosen question, the most telling one first; with
        `quick` none of the others, unless no named one is chosen.
        """
        ranked = [*dict.fromkeys(each.probe for each in self.order if each.chosen)]
        first = [name for name in ranked if name in names]
        rest = [name for name in names if name not in ranked]
        return first if quick and first else first + rest

    def questions(self, probe: str, more: int = 0) -> frozenset[str]:
        """The chosen questions of a probe, and this many of the next ones; of a probe without a
        chosen one, the best.
        """
        own = [each for each in self.order if each.probe == probe]
        count = max(1, sum(each.chosen for each in own)) + more
        return frozenset(each.question for each in own[:count])

    def forwards(self, probe: str, question: str) -> float:
        """What a question costs where nothing ran before."""
        known = {each.asked: each.alone for each in self.order}
        return known.get((probe, question), USUAL)


def of_matrix(matrix: Matrix, own: Mapping[str, Sequence[str]]) -> Chosen:
    """The order of a matrix; and for each probe the known faults that one of its chosen questions
    caught wherever they were injected, first those that are its `own` controls.
    """
    order = tuple(ranked(matrix))
    known: dict[str, list[FaultRow]] = {}
    for row in matrix.rows:
        if not row.random and not row.reason:
            known.setdefault(row.fault, []).append(row)
    controls: dict[str, dict[str, str]] = {}
    for each in sorted((each for each in order if each.chosen), key=lambda each: each.alone):
        for fault, rows in known.items():
            if all(each.asked in row.caught for row in rows):
                controls.setdefault(each.probe, {}).setdefault(fault, each.question)
    first = {
        probe: dict(sorted(seen.items(), key=lambda each: each[0] not in own.get(probe, ())))
        for probe, seen in sorted(controls.items())
    }
    place = {each.asked: number for number, each in enumerate(order)}
    caught = {
        f"{row.fault} in {row.target}": sorted(place[each] for each in row.caught if each in place)
        for row in matrix.caught
    }
    return Chosen(order, first, caught)


@cache
def chosen() -> Chosen:
    """What stands in the package."""
    return read(FILE.read_text(encoding="utf-8"))


def read(text: str) -> Chosen:
    """The order and the controls of a data file."""
    data = json.loads(text)
    order = tuple(Ranked(**each) for each in data["order"])
    return Chosen(order, data["controls"], data["caught"])


def written(chosen: Chosen, command: str) -> str:
    """The text of the data file, a line for each question."""
    lines = ",\n    ".join(json.dumps(vars(each)) for each in chosen.order)
    controls = json.dumps(chosen.controls)
    faults = ",\n    ".join(f"{json.dumps(name)}: {at}" for name, at in chosen.caught.items())
    head = f'"command": {json.dumps(command)},\n  "controls": {controls}'
    body = f'"order": [\n    {lines}\n  ],\n  "caught": {{\n    {faults}\n  }}'
    return f"{{\n  {head},\n  {body}\n}}\n"
