"""From a report to an answer: which steps run, in which order, and which of them decides.

A fault decides first, then behaviour by design, then rounding; what none of them explains was not
reproduced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import final

from attncheck.core import registry
from attncheck.core.errors import stop_code
from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.claims import is_proven
from attncheck.model.subject import Subject
from attncheck.run.implicit import implicit_findings
from attncheck.triage import axes, checks, relevance, reproduced, steps
from attncheck.triage.answer import OWN, Question, Remark, Smallest, Triage, TriageAnswer
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import BRIEF, Material, brief, material
from attncheck.triage.own_call import SLOW, OwnCall, described, own_call
from attncheck.triage.precision import Ladder
from attncheck.triage.remarks import facts, remarks, trapped
from attncheck.triage.routes import Route, present, route, symptom_of
from attncheck.triage.second import another
from attncheck.triage.smallest import ForwardCount, reproduction, smallest_of
from attncheck.triage.words import advised, falsifier, headline

LONG = ("", "long", "upgrade")
EXPENSIVE = ("future-token",)
SINGLES = "one axis at a time"
PASSES, PASSES_SLOW = 600, 240
"""Forwards after which no further step starts, of small models and of those with many weights."""
Attempt = Callable[[], Finding | None]


@final
@dataclass
class Investigation:
    """One triage of one loaded model.

    `reported` is the reporter's own precision, `first` are attempts before all others, and `repro`
    is the folder for a script that shows the fault.
    """

    subject: Subject
    question: Question
    reported: str
    says: Callable[[str], None] = lambda what: None
    log: steps.Log = field(init=False)
    symptom: str = field(init=False)
    route: Route = field(init=False)
    material: Material = field(init=False)
    brief: Material = field(init=False)
    call: OwnCall | None = field(init=False)
    first: list[Attempt] = field(default_factory=list)
    traps: list[Remark] = field(default_factory=list)
    asides: list[Remark] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    repro: Path | None = None

    def __post_init__(self) -> None:
        self.log = steps.Log(self._with_guess)
        self.symptom = symptom_of(self.question)
        self.route = route(self.symptom)
        self.material = material(self.subject, self.question)
        self.brief = brief(self.subject, self.material)
        self.call = own_call(self.subject, self.question, self.material)
        limit = self.question.passes or (PASSES_SLOW if self._slow else PASSES)
        self._count = ForwardCount(self.subject, limit)
        self._clock = time.perf_counter()

    def run(self) -> Triage:
        """Run every step until one decides; where the user stops it, the best guess so far.

        Raises:
            KeyboardInterrupt: it was stopped before any step had ended.
        """
        try:
            return self._decided()
        except KeyboardInterrupt as stop:
            if not self.log.steps:
                raise
            return replace(self._guessed(), stopped=stop_code(stop))

    def _decided(self) -> Triage:
        finding = self.fault()
        if finding is not None:
            return self._confirmed(finding)
        found = tuple(remarks(self.subject, self.question, self.material))
        ladder = self.ladder
        finding = self._beyond_rounding(ladder)
        if finding is not None:
            return self._confirmed(finding)
        answer = partial(self._answer, remarks=found, ladder=ladder)
        if any(remark.decides for remark in (*self.traps, *found)):
            return answer(TriageAnswer.BEHAVIOUR)
        steps.control(self.subject, self.brief, self._singles(), self.log)
        if self._explained:
            return answer(TriageAnswer.NUMERICS)
        if any(remark.late for remark in found):
            return answer(TriageAnswer.BEHAVIOUR)
        return answer(TriageAnswer.NOT_REPRODUCED)

    def fault(self) -> Finding | None:
        """The first finding that names its fault, else the best of those that failed."""
        for attempt in self._attempts():
            if self._count.spent:
                break
            finding = attempt()
            if finding is None or finding.verdict is not Verdict.FAIL:
                continue
            if other := relevance.elsewhere(self.subject, finding, self.question, self._agrees):
                self.asides.append(relevance.aside(other, finding))
                continue
            kept = relevance.concerned(self.subject, finding, self.question, self._agrees)
            self.found.append(finding := steps.narrowed(self.subject, finding, kept, self.log))
            if is_proven(finding):
                return finding
        return self._best

    @property
    def _best(self) -> Finding | None:
        return min(self.found, key=relevance.vagueness, default=None)

    def _attempts(self) -> Iterator[Attempt]:
        """Cheap causes first: what is read off the model, the reporter's own call, its layers."""
        subject, log = self.subject, self.log
        for finding in implicit_findings(subject):
            yield partial(lambda each: each, finding)
        yield from self.first
        yield lambda: checks.finite_values(subject, self.material, self.reported, log)
        wanted = [
            *self.route.probes.split(),
            *(["implementations"] if subject.settings.compiled else ()),
        ]
        names = present(dict.fromkeys(wanted), registry.installed())
        if self._slow:
            names.sort(key=EXPENSIVE.__contains__)  # those that take a forward for each token last
        first = names[:1] if names[:1] == ["reference"] else []
        long = self.symptom == "long" or self._is_long
        early = ["window"] if long and "window" in names else []
        begin: list[Attempt] = [*(partial(self._probe, name) for name in first), self._own]
        yield from begin[:: -1 if self.question.issue.lost else 1]
        yield partial(steps.embeds, subject, self.question, self.material, self.call, log)
        if first:  # where labels come first, a wrong plain forward must not be the measure
            yield partial(self._called, self._singles(), SINGLES)
        if long:
            yield from (partial(self._probe, name) for name in early)
            yield self._lengths
        if self._slow and (self.traps or self._explained):
            return  # what was reported is explained: a search elsewhere takes minutes here
        yield from (partial(self._probe, name) for name in names if name not in (*first, *early))
        yield from self._wider(bool(first), names)

    def _wider(self, begun: bool, names: list[str]) -> Iterator[Attempt]:
        """What takes longest: all axes together, lengths, and the probes of other symptoms."""
        if self.symptom == "training":
            yield self._accumulated
        if not begun:
            yield partial(self._called, self._singles(), SINGLES)
        crossed = list(axes.crossed(axes.values(self.subject)))
        yield partial(self._called, crossed, "axes crossed")
        if self.question.symptom in LONG and not self._is_long:
            yield self._lengths
        if not self.question.symptom and not self.traps:
            rest = present(dict.fromkeys(route("").probes.split()), registry.installed())
            yield from (partial(self._probe, name) for name in rest if name not in names)

    @property
    def _agrees(self) -> bool:
        """Whether the reporter's own call was run and is right."""
        described_in_full = bool(described(self.subject, self.call, self.material))
        return self.log.passed(OWN) or (self.call is None and described_in_full)

    @property
    def _is_long(self) -> bool:
        usual = BRIEF if self._slow else self.subject.inputs.length  # what the probes use
        return self.material.whole and self.material.length > usual

    @property
    def _slow(self) -> bool:
        return bool(self.subject.facts.parameters > SLOW)

    @cached_property
    def ladder(self) -> Ladder:
        """What was reported in every precision."""
        source = reproduced.Source(self.subject, self.call, self.brief, self._singles())
        question = replace(self.question, symptom=self.symptom)
        return reproduced.ladder_of(source, self.reported, question, self.log.says)

    @property
    def _explained(self) -> bool:
        """Whether the reporter's own precision shows the report, and a finer one that it is
        rounding.
        """
        shown = self.ladder.reproduces(self.symptom, self.question.difference)
        return shown and self.ladder.is_rounding

    def _own(self) -> Finding | None:
        found = steps.own(self.subject, self.call, self.log) if self.call is not None else None
        if not isinstance(found, Remark):
            return found
        self.traps.append(found)
        return None

    def _called(self, patterns: list[CallPattern], what: str) -> Finding | None:
        return steps.called(self.subject, self.brief, patterns, what, self.log)

    def _lengths(self) -> Finding | None:
        if "lengths" in (step.name for step in self.log.steps):
            return None
        return steps.lengths(self.subject, self.material, lambda: self._count.spent, self.log)

    def _probe(self, name: str) -> Finding | None:
        finding = steps.probed(self.subject, name, self.log)
        if name in self.route.traps:
            trap = trapped(self.subject, finding, self.reported, self.question)
            self.traps += [trap] if trap is not None else []
        beside = relevance.beside(self.subject, finding)
        if beside is None and name not in self.route.traps:
            self.asides += relevance.unusual(finding)
        self.asides += [beside] if beside is not None else []
        return finding if beside is None else None

    def _accumulated(self) -> Finding | None:
        """A fault of accumulation steps; only mentioned where labels have explained the report."""
        finding = checks.accumulated(self.subject, self.log)
        if finding is None or not self.traps:
            return finding
        self.traps.append(checks.accumulation_trap(finding))
        return None

    def _singles(self) -> list[CallPattern]:
        return axes.alone(axes.values(self.subject), self.route.axes)

    def _beyond_rounding(self, ladder: Ladder) -> Finding | None:
        if ladder.failing is None or self.traps:
            return None
        dtype, case = ladder.failing
        return steps.beyond(self.subject, dtype, case, self.log)

    def _confirmed(self, finding: Finding) -> Triage:
        self.log.says("whether what was reported is still there")
        second = another(self.subject, self.brief, self._singles(), finding, self.log)
        self.log.says("the smallest call that still fails")
        small, pair = smallest_of(self.subject, self.brief, finding, self.reported)
        confirmed = TriageAnswer.CONFIRMED
        answer = self._answer(confirmed, finding=finding, second=second, smallest=small)
        if self.repro is None:
            return answer
        self.log.says("a script that shows it")
        text, reason = reproduction(self.subject, finding, pair, self.repro)
        return replace(answer, script=text, no_script=reason)

    def _guessed(self) -> Triage:
        if self._best is not None:
            return self._answer(TriageAnswer.CONFIRMED, finding=self._best)
        return self._answer(TriageAnswer.BEHAVIOUR if self.traps else TriageAnswer.NOT_REPRODUCED)

    def _with_guess(self, what: str) -> None:
        """Say what runs now, behind the best guess so far."""
        guess = self._best.summary if self._best else next((t.title for t in self.traps), "")
        self.says(f"so far: {guess} · {what}" if guess else what)

    def _answer(
        self,
        answer: TriageAnswer,
        *,
        finding: Finding | None = None,
        second: Finding | None = None,
        smallest: Smallest | None = None,
        remarks: tuple[Remark, ...] = (),
        ladder: Ladder | None = None,
    ) -> Triage:
        triage = Triage(
            target=self.subject.name,
            answer=answer,
            headline="",
            told=self.question.issue.lines(),
            called=described(self.subject, self.call, self.material),
            finding=finding,
            second=second,
            smallest=smallest,
            steps=tuple(self.log.steps),
            remarks=tuple(chain(self.traps, self.asides, remarks)),
            lines=ladder.lines if ladder else (),
            split=ladder.split if ladder else None,
            read=tuple(facts(self.subject, self.reported)),
            seconds=time.perf_counter() - self._clock,
        )
        triage = replace(triage, headline=headline(triage, self.reported))
        return replace(triage, advice=advised(triage), falsifier=falsifier(triage, self.reported))
