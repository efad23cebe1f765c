"""Inject random faults one by one, ask the probes about each, and note what they made of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from attncheck.attention.layers import layer_index
from attncheck.core.errors import CannotInject
from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.controls import noticed
from attncheck.run.random_faults.draw import drawn
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.judged import claims, explains, places
from attncheck.run.random_faults.parts import RandomFault
from attncheck.run.random_faults.shows import Healthy
from attncheck.run.random_faults.sites import Sites, sites_of
from attncheck.run.random_faults.stored import layer_of
from attncheck.run.runner import finding_of

TRIES = 60
"""So many faults are drawn at most until one shows."""
EXPLAINED = 2
"""The search for an explanation ends after so many findings: a reader stops there, too."""
FIRST = (
    "decode-paths",
    "reference",
    "padding",
    "batch-rows",
    "cache-kinds",
    "future-token",
    "window",
    "position-reset",
)
"""The probes in which random faults show most often come first; it only saves time."""


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One random fault in one model, and what the probes said. `said` are the findings of those
    that caught it, each with how it explains the fault and whether it is right.
    """

    target: str
    number: int
    fault: RandomFault | None
    moved: float = 0.0
    said: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
    reason: str = ""

    @property
    def caught(self) -> bool:
        """At least one probe noticed."""
        return bool(self.said)

    @property
    def explained(self) -> bool:
        """At least one finding names the right parts."""
        return any(each["right"] for each in self.said)

    @property
    def placed(self) -> bool:
        """The finding that explains it, otherwise the first one, names the right module."""
        order = sorted(self.said, key=lambda each: not each["right"])
        return bool(order) and bool(order[0]["placed"])

    @property
    def wrong(self) -> bool:
        """A finding claims to have reproduced or measured another fault."""
        return any(each["right"] is False for each in self.said)

    def as_dict(self) -> dict[str, Any]:
        """One line of the JSON."""
        outcome = {name: getattr(self, name) for name in ("caught", "explained", "placed", "wrong")}
        parts = None if self.fault is None else self.fault.as_dict()
        return {**asdict(self), "fault": str(self.fault or ""), "parts": parts, **outcome}


@final
@dataclass
class Trials:
    """Random faults in one subject."""

    subject: Subject
    probes: Sequence[Probe]
    seed: int = 0
    before: dict[str, Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sites: Sites = sites_of(self.subject)
        self.healthy = Healthy(self.subject)
        order = {name: number for number, name in enumerate(FIRST)}
        self.probes = sorted(self.probes, key=lambda each: order.get(each.name, len(order)))

    def numbered(self, number: int) -> Trial:
        """The first drawn fault that shows in this model, tried."""
        tried: Iterator[RandomFault] = drawn(self.sites, self.seed, number)
        try:
            for _ in range(TRIES):
                trial = self.of(next(tried), number)
                if not trial.reason:
                    return trial
        except IndexError:
            pass
        return Trial(
            target=self.subject.name, number=number, fault=None, reason="no drawn fault shows"
        )

    def of(self, fault: RandomFault, number: int = 0) -> Trial:
        """One fault tried; `reason` says why it could not be."""
        started = time.perf_counter()
        trial = Trial(target=self.subject.name, number=number, fault=fault)
        injector = Injector(self.sites, fault)
        try:
            moved = self.healthy.moved(injector)
            if not moved:
                return replace(trial, reason="it moves no logits beyond rounding")
            said = tuple(self._said(injector))
        except CannotInject as reason:
            return replace(trial, reason=str(reason))
        return replace(trial, moved=moved, said=said, seconds=time.perf_counter() - started)

    def _said(self, injector: Injector) -> Iterator[dict[str, Any]]:
        found, diagnoser = 0, Diagnoser()
        for probe in self.probes:
            finding = self.noticed(injector, probe)
            if finding is None:
                continue
            with injector.injected():
                finding = diagnoser(self.subject, finding)
            said = self._judged(injector.fault, finding)
            yield said
            found += 1
            if said["right"] or found == EXPLAINED:
                return

    def noticed(self, injector: Injector, probe: Probe) -> Finding | None:
        """The finding of a probe with the fault, where it is worse than without and did not fail
        before.
        """
        with injector.injected():
            found = finding_of(self.subject, probe)
        if found.verdict not in (Verdict.FAIL, Verdict.WARN):
            return None
        if probe.name not in self.before:
            self.before[probe.name] = finding_of(self.subject, probe)
        # of two faults, a finding may explain the one that the model brings along
        if self.before[probe.name].verdict is Verdict.FAIL:
            return None
        healthy = {case.name: case for case in self.before[probe.name].cases}
        worse = any(noticed(case, healthy.get(case.name)) for case in found.cases)
        return found if worse else None

    def _judged(self, fault: RandomFault, finding: Finding) -> dict[str, Any]:
        diagnosis, place = finding.diagnosis, finding.location
        return {
            "probe": finding.probe,
            "verdict": str(finding.verdict),
            "said": claims(finding),
            "how": diagnosis.how if diagnosis else None,
            "fault": diagnosis.fault if diagnosis else None,
            "advice": diagnosis.advice if diagnosis else "",
            "right": explains(fault, layer_of(self.sites, fault.at), diagnosis),
            "sentence": diagnosis.sentence if diagnosis else "",
            "placed": places(fault, self._concerned(fault), place),
        }

    def _concerned(self, fault: RandomFault) -> tuple[str, ...]:
        """The modules that a fault in every place concerns, first one first."""
        if fault.what == "states":
            layers = self.sites.states
            return tuple(
                name
                for name in self.sites.hidden
                if layer_index(self.subject.model.get_submodule(name), name) in layers
            )
        if fault.what == "positions" and self.sites.rotary:
            return tuple(self.sites.rotary)
        return tuple(site.module for site in self.sites.attention if not site.cross)
