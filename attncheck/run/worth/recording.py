"""Measure the matrix: inject every known fault, and faults drawn at random, and note every question
that catches each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

from attncheck.core import registry
from attncheck.core.choice import Choice, choosing
from attncheck.core.errors import CannotInject, TargetError, Unsupported
from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.controls import noticed
from attncheck.run.measuring import measured_cases
from attncheck.run.random_faults.draw import drawn
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.shows import Healthy
from attncheck.run.random_faults.sites import sites_of
from attncheck.run.random_faults.trial import TRIES
from attncheck.run.runner import finding_of
from attncheck.run.worth.matrix import Asked, Cost, FaultRow, Matrix, append, read
from attncheck.run.worth.meter import Meter
from attncheck.targets.load import load


@final
@dataclass
class MatrixRecording:
    """What the probes make of known faults, each in at most `each` of the targets, then of `random`
    faults dealt out to the `drawn_in` ones in turn. What the file holds is not measured again.
    """

    targets: Sequence[str]
    drawn_in: Sequence[str]
    settings: Settings
    probes: Sequence[str]
    faults: Sequence[str]
    each: int = 1
    random: int = 0
    file: Path | None = None
    matrix: Matrix = field(init=False)

    def __post_init__(self) -> None:
        self.matrix = read(self.file)

    def run(self) -> Iterator[FaultRow]:
        """Every row that is measured now."""
        if not self.matrix.costs:
            self._opened(self.targets[0])
        for target in self.targets:
            left = [name for name in self.faults if self._wanted(target, name)]
            if left:
                yield from self._known(target, left)
        for place, target in enumerate(self.drawn_in):
            known = {row.fault for row in self.matrix.rows if row.random and row.target == target}
            numbers = range(len(range(place, self.random, len(self.drawn_in))))
            if len(known) < len(numbers):
                yield from self._drawn(target, numbers[len(known) :])

    def _wanted(self, target: str, fault: str) -> bool:
        rows = [row for row in self.matrix.rows if row.fault == fault]
        tried = any(row.target == target for row in rows)
        return not tried and sum(not row.reason for row in rows) < self.each

    def _known(self, target: str, names: Sequence[str]) -> Iterator[FaultRow]:
        opened = self._opened(target)
        for name in names:
            yield self._row(opened, name, faults.fault(name).injected(opened.subject))

    def _drawn(self, target: str, numbers: Sequence[int]) -> Iterator[FaultRow]:
        try:
            opened = self._opened(target)
        except TargetError as error:
            for number in numbers:
                reason = f"not loaded: {error}"
                yield self._kept(
                    FaultRow(target=target, fault=f"no. {number}", random=True, reason=reason)
                )
            return
        for number in numbers:
            injector = _shown(opened.subject, self.settings.seed, number)
            if injector is None:
                row = FaultRow(
                    target=target, fault=f"no. {number}", random=True, reason="none shows"
                )
                yield self._kept(row)
            else:
                yield self._row(opened, str(injector.fault), injector.injected(), random=True)

    def _opened(self, target: str) -> Opened:
        probes = [registry.load(name) for name in self.probes]
        opened = Opened(load(target, self.settings), probes)
        new = list(opened.costs(self.matrix.costs))
        append(self.file, new)
        for each in new:
            self.matrix.take(each)
        return opened

    def _row(
        self,
        opened: Opened,
        fault: str,
        injected: AbstractContextManager[Any],
        random: bool = False,
    ) -> FaultRow:
        caught: tuple[Asked, ...] = ()
        reason = ""
        try:
            with injected:
                caught = tuple(opened.caught())
        except Unsupported as refusal:
            reason = str(refusal)
        name = opened.subject.name
        return self._kept(
            FaultRow(target=name, fault=fault, random=random, caught=caught, reason=reason)
        )

    def _kept(self, row: FaultRow) -> FaultRow:
        append(self.file, [row])
        self.matrix.take(row)
        return row


def _shown(subject: Subject, seed: int, number: int) -> Injector | None:
    """The first drawn fault that moves the logits of this model."""
    sites, healthy = sites_of(subject), Healthy(subject)
    with suppress(IndexError):
        for fault in itertools.islice(drawn(sites, seed, number), TRIES):
            injector = Injector(sites, fault)
            with suppress(CannotInject):
                if healthy.moved(injector):
                    return injector
    return None


@final
@dataclass
class Opened:
    """A target with what its probes say of it while it is healthy."""

    subject: Subject
    probes: Sequence[Probe]
    healthy: dict[str, Finding] = field(init=False)
    choices: dict[str, Choice] = field(init=False)

    def __post_init__(self) -> None:
        self.choices = {probe.name: Choice() for probe in self.probes}
        self.healthy = {probe.name: self._finding(probe) for probe in self.probes}

    def _finding(self, probe: Probe) -> Finding:
        with choosing(self.choices[probe.name]):
            return finding_of(self.subject, probe)

    def caught(self) -> Iterator[Asked]:
        """The questions that come out worse now than they did on the healthy model."""
        for probe in self.probes:
            found, healthy = self._finding(probe), self.healthy[probe.name]
            if found.verdict not in (Verdict.FAIL, Verdict.WARN):
                continue
            before = {case.name: case for case in healthy.cases}
            asked = self.choices[probe.name].cases
            worse = (case for case in found.cases if noticed(case, before.get(case.name)))
            for question in dict.fromkeys(asked.get(case.name, "") for case in worse):
                yield probe.name, question

    def costs(self, known: dict[Asked, Cost]) -> Iterator[Cost]:
        """The cost of every question that none is known of, each asked alone; the key `` stands
        for what a probe asks in any case.
        """
        meter = Meter(self.subject)
        for probe in self.probes:
            keys = [*dict.fromkeys(self.choices[probe.name].asked.values())]
            new = [key for key in keys if (probe.name, key) not in known]
            for key in ("", *new) if new else ():
                shared, own = meter.of(partial(_asked_alone, probe, key))
                yield Cost(
                    probe=probe.name,
                    question=key,
                    target=self.subject.name,
                    shared=shared,
                    own=own,
                )


def _asked_alone(probe: Probe, key: str, subject: Subject) -> None:
    """One question of a probe, of a subject of which nothing is known."""
    choice = Choice(key.__eq__)
    with choosing(choice), suppress(Unsupported):
        for need in probe.needs:
            subject.capability(need).require()
        for _ in measured_cases(probe, subject):
            pass
