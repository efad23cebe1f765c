"""A run that does not ask everything: the chosen questions of each probe, and then as many others
as fit into the time.

What is left out is said in each finding; a probe of which nothing was asked is skipped. Nothing
passes without a control that one of the asked questions noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.choice import Choice, choosing
from attncheck.core.extent import RunExtent
from attncheck.core.finding import Evidence, Finding, skipped_finding
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.runner import Backing, Event, Examination, ProbeFinished
from attncheck.run.worth.chosen import USUAL, Chosen, chosen

NEXT = 4
"""So many more questions are asked where a model has none of the chosen ones."""
Run = Callable[[Probe, Backing], Iterator[Event]]
"""Runs one probe on the subject, backed by such controls, and yields its events, the finding last.
"""


@final
@dataclass
class Clock:
    """The time of one run. A forward takes what those so far took on average."""

    subject: Subject
    seconds: float | None
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.before = self.subject.loaded.forwards

    def fits(self, forwards: float) -> bool:
        """Whether there is time for so many more forwards."""
        if self.seconds is None:
            return True
        passed = time.perf_counter() - self.started
        ran = self.subject.loaded.forwards - self.before
        return passed + forwards * (passed / ran if ran else 0.0) < self.seconds


@final
@dataclass
class Limited:
    """One run over one subject within an extent."""

    run: Run
    extent: RunExtent
    plan: Chosen = field(default_factory=chosen)

    def examine(self, subject: Subject, probes: Sequence[Probe]) -> Iterator[Event]:
        """The chosen questions of every probe; then, within a time, the rest. A failure is told at
        once, and a pass when no more can be asked.
        """
        clock, named = Clock(subject, self.extent.seconds), {each.name: each for each in probes}
        order = self.plan.probes(list(named), self.extent.quick)
        waiting: dict[str, tuple[Choice, Finding]] = {}
        for name in order:
            choice, finding = yield from self._first(named[name], clock)
            if self.extent.quick or finding.verdict is not Verdict.PASS:
                yield self._told(subject, choice, finding)
            else:
                waiting[name] = choice, finding
        for name, (choice, finding) in waiting.items():
            finding = yield from self._rest(named[name], clock, choice, finding)
            yield self._told(subject, choice, finding)
        for name in (each for each in named if each not in order):
            yield ProbeFinished(subject.name, skipped_finding(name, self._reason))

    @property
    def _reason(self) -> str:
        return f"left out by {' '.join(self.extent.options)}"

    def _told(self, subject: Subject, choice: Choice, finding: Finding) -> ProbeFinished:
        """The finding with what was left out of it; a skip where that is everything."""
        if choice.left and not choice.asked and finding.verdict in (Verdict.PASS, Verdict.SKIP):
            finding = skipped_finding(finding.probe, self._reason)
        return ProbeFinished(subject.name, replace(finding, left=tuple(choice.left)))

    def _first(self, probe: Probe, clock: Clock) -> Generator[Event, None, tuple[Choice, Finding]]:
        """The chosen questions; more of them where a model has none, or where they do not notice
        the control.
        """
        choice = Choice(brief=self.extent.quick)
        backing = Backing(self.plan.controls.get(probe.name, {}), count=1)
        for wanted in (
            self.plan.questions(probe.name),
            self.plan.questions(probe.name, more=NEXT),
            None,
        ):
            choice.wanted = self._within(clock, probe, wanted)
            finding = yield from self._finding(probe, choice, backing)
            told = finding.verdict not in (Verdict.SKIP, Verdict.VACUOUS)
            if told or not choice.left or not clock.fits(USUAL):
                break
        return choice, finding

    def _rest(self, probe: Probe, clock: Clock, choice: Choice, before: Finding) -> Examination:
        """What a probe that passed has left, as far as it fits; `choice` learns what was asked."""
        if not choice.left or not clock.fits(USUAL):
            return before
        asked = frozenset(choice.asked.values())
        rest = Choice(self._within(clock, probe, None, but=asked))
        finding = yield from self._finding(probe, rest, Backing(count=0))
        for name in rest.asked:
            choice.left.pop(name, None)
        choice.left.update((name, key) for name, key in rest.left.items() if key not in asked)
        choice.asked.update(rest.asked)
        return _joined(probe, before, finding)

    def _within(
        self,
        clock: Clock,
        probe: Probe,
        wanted: frozenset[str] | None,
        but: frozenset[str] = frozenset(),
    ) -> Callable[[str], bool]:
        def takes(key: str) -> bool:
            if key in but or (wanted is not None and key not in wanted):
                return False
            return clock.fits(self.plan.forwards(probe.name, key))

        return takes

    def _finding(self, probe: Probe, choice: Choice, backing: Backing) -> Examination:
        with choosing(choice):
            for event in self.run(probe, backing):
                if isinstance(event, ProbeFinished):
                    return event.finding
                yield event
        raise AssertionError("a probe ends with its finding")


def _joined(probe: Probe, before: Finding, after: Finding) -> Finding:
    """The finding of a probe that was asked in two parts, of which the first one passed."""
    if after.verdict is Verdict.SKIP:
        return before
    known = {case.name for case in before.cases}
    cases = (*before.cases, *(case for case in after.cases if case.name not in known))
    if after.verdict is Verdict.PASS:
        ruling = probe.judge(Evidence(measurements=cases, replay=before.replay))
        after = after.with_verdict(ruling.verdict, ruling.summary)
    return replace(
        after,
        cases=cases,
        controls=before.controls,
        controls_missing=before.controls_missing,
        seconds=before.seconds + after.seconds,
        traps=(*before.traps, *after.traps),
    )
