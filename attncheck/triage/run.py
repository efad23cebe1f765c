"""From a report to an answer: which steps run, in which order, and which of them decides.

A fault decides first, then behaviour by design, then rounding; what none of them explains was not
reproduced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import final, get_args

from attncheck.core import registry
from attncheck.core.finding import Finding, Proof
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.claims import is_proven
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.subject import Subject
from attncheck.run.implicit import implicit_findings
from attncheck.triage import axes, checks, precision, steps
from attncheck.triage.answer import (
    GreedySplit,
    PrecisionLine,
    Question,
    Remark,
    Smallest,
    Triage,
    TriageAnswer,
)
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material, material
from attncheck.triage.remarks import NO_TEMPLATE, facts, only_boolean_masks, remarks, trapped
from attncheck.triage.routes import Route, present, route
from attncheck.triage.smallest import ForwardCount, reproduction, smallest_of
from attncheck.triage.words import advised, falsifier, headline

HALF = ("bfloat16", "float16")
NUMERIC = ("batch", "cache", "padding", "implementation", "upgrade")
"""Symptoms under which any difference at all is what the reporter saw."""
LONG = ("", "long", "upgrade")
COMPILING = "implementations"
"""The probe that compares the compiled model."""
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
    route: Route = field(init=False)
    material: Material = field(init=False)
    first: list[Attempt] = field(default_factory=list)
    traps: list[Remark] = field(default_factory=list)
    asides: list[Remark] = field(default_factory=list)
    repro: Path | None = None

    def __post_init__(self) -> None:
        self.log = steps.Log(self.says)
        self.route = route(self.question.symptom)
        self.material = material(self.subject, self.question.prompts)
        self._count = ForwardCount(self.subject, self.question.passes)
        self._clock = time.perf_counter()

    def run(self) -> Triage:
        """Run every step until one decides."""
        finding = self.fault()
        if finding is not None:
            return self._confirmed(finding)
        found = tuple(remarks(self.subject, self.question, self.material))
        answer = partial(self._answer, remarks=found)
        lines, split = self._numerics()
        if self.traps or any(remark.decides for remark in found):
            return answer(TriageAnswer.BEHAVIOUR, lines=lines, split=split)
        steps.control(self.subject, self.material, self._singles(), self.log)
        if self._visible(lines, split):
            return answer(TriageAnswer.NUMERICS, lines=lines, split=split)
        if any(remark.title == NO_TEMPLATE for remark in found):
            return answer(TriageAnswer.BEHAVIOUR, lines=lines)
        return answer(TriageAnswer.NOT_REPRODUCED, lines=lines)

    def fault(self) -> Finding | None:
        """The first finding that names its fault, else the best of those that failed."""
        found: list[Finding] = []
        for attempt in self._attempts():
            if self._count.spent and found:
                break
            finding = attempt()
            if finding is None or finding.verdict is not Verdict.FAIL:
                continue
            found.append(finding)
            if is_proven(finding):
                return finding
        return min(found, key=_vagueness, default=None)

    def _attempts(self) -> Iterator[Attempt]:
        subject, material, log = self.subject, self.material, self.log
        for finding in implicit_findings(subject):
            yield partial(lambda each: each, finding)
        yield from self.first
        yield lambda: checks.finite_values(subject, material, self.reported, log)
        wanted = [*self.route.probes.split(), *([COMPILING] if subject.settings.compiled else ())]
        names = present(dict.fromkeys(wanted), registry.installed())
        first = names[:1] if names[:1] == ["reference"] else []
        yield from (partial(self._probe, name) for name in first)
        own = self.question.pattern
        if own.axes:
            yield lambda: steps.called(subject, material, [own], "the reporter's own call", log)
        yield from (partial(self._probe, name) for name in names if name not in first)
        if self.question.symptom == "training":
            yield self._accumulated
        singles, crossed = self._singles(), list(axes.crossed(axes.values(subject)))
        yield lambda: steps.called(subject, material, singles, "one axis at a time", log)
        yield lambda: steps.called(subject, material, crossed, "axes crossed", log)
        if self.question.symptom in LONG:
            yield lambda: steps.lengths(subject, log)

    def _probe(self, name: str) -> Finding | None:
        if self._count.spent:
            return None
        finding = steps.probed(self.subject, name, self.log)
        if name in self.route.traps:
            trap = trapped(self.subject, finding, self.reported)
            self.traps += [trap] if trap is not None else []
        if only_boolean_masks(finding, self.subject.attn):
            title = "not what was reported, but wrong here"
            self.asides.append(Remark(title=title, words=finding.summary))
            return None
        return finding

    def _accumulated(self) -> Finding | None:
        """A fault of accumulation steps; only mentioned where labels have explained the report."""
        finding = checks.accumulated(self.subject, self.log)
        if finding is None or not self.traps:
            return finding
        words = f"{finding.summary}. {finding.diagnosis.advice if finding.diagnosis else ''}"
        title = "accumulation steps change the loss as well"
        self.traps.append(Remark(title=title, words=words))
        return None

    def _singles(self) -> list[CallPattern]:
        return axes.alone(axes.values(self.subject), self.route.axes)

    def _confirmed(self, finding: Finding) -> Triage:
        self.says("the smallest call that still fails")
        small, pair = smallest_of(self.subject, self.material, finding, self.reported)
        answer = self._answer(TriageAnswer.CONFIRMED, finding=finding, smallest=small)
        if self.repro is None:
            return answer
        self.says("a script that shows it")
        text, reason = reproduction(self.subject, finding, pair, self.repro)
        return replace(answer, script=text, no_script=reason)

    def _numerics(self) -> tuple[tuple[PrecisionLine, ...], GreedySplit | None]:
        """The symptom's axes in every precision, and where greedy text of the prompts diverges."""
        question, text, split = self.question, self.material, None
        if not (
            question.symptom in (*NUMERIC, "long") or question.generate or self.reported in HALF
        ):
            return (), None
        self.says("the same in every precision")
        if question.generate:
            try:
                with self.subject.at(self.reported) as own:
                    split, text = precision.greedy_split(own, text, question.generate)
            except REFUSED:
                split = None
        offered = axes.values(self.subject)
        about = {axis: found for axis, found in offered.items() if axis in self.route.axes}
        patterns = axes.alone(about or offered, self.route.axes)
        if question.pattern.axes:
            patterns = [question.pattern]
        return tuple(precision.precisions(self.subject, text, patterns, self.reported)), split

    def _visible(self, lines: tuple[PrecisionLine, ...], split: GreedySplit | None) -> bool:
        """Whether the reporter's own precision shows a difference at all."""
        own = next((line for line in lines if line.dtype == self.reported), None)
        if own is None:
            return False
        any_counts = self.question.symptom in NUMERIC or self.reported in HALF
        return split is not None or own.flips > 0 or (any_counts and own.max_abs > 0)

    def _answer(
        self,
        answer: TriageAnswer,
        *,
        finding: Finding | None = None,
        smallest: Smallest | None = None,
        remarks: tuple[Remark, ...] = (),
        lines: tuple[PrecisionLine, ...] = (),
        split: GreedySplit | None = None,
    ) -> Triage:
        triage = Triage(
            target=self.subject.name,
            answer=answer,
            headline="",
            finding=finding,
            smallest=smallest,
            steps=tuple(self.log.steps),
            remarks=tuple(chain(self.traps, self.asides, remarks)),
            lines=lines,
            split=split,
            read=tuple(facts(self.subject, self.reported)),
            seconds=time.perf_counter() - self._clock,
        )
        triage = replace(triage, headline=headline(triage, self.reported))
        return replace(triage, advice=advised(triage), falsifier=falsifier(triage))


def _vagueness(finding: Finding) -> int:
    """How little a finding says about its cause."""
    how = finding.diagnosis.how if finding.diagnosis else "unexplained"
    return get_args(Proof).index(how)
