"""From a report to an answer: what runs, in which order, and what decides.

A fault decides first, then what the model does by design, then rounding; only what none of them
explains was not reproduced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import final

from attncheck.core import registry
from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding, Verdict, verdict_of
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.run.implicit import implicit_findings
from attncheck.triage import axes, checks, precision, remarks, smallest, steps
from attncheck.triage.answer import (
    GreedySplit,
    PrecisionLine,
    Question,
    Remark,
    Smallest,
    Triage,
    TriageAnswer,
)
from attncheck.triage.call_pattern import CallPattern, pattern_of
from attncheck.triage.checks import accumulated
from attncheck.triage.material import Material, material
from attncheck.triage.remarks import facts
from attncheck.triage.routes import Route, present, route
from attncheck.triage.smallest import Pair, reproduction
from attncheck.triage.words import advised, falsifier, headline

HALF = ("bfloat16", "float16")
NUMERIC = ("batch", "cache", "padding", "implementation", "upgrade")
"""Symptoms under which any difference at all is what the reporter saw."""
LONG = ("", "long", "upgrade")
SEARCH = 60
"""Passes that the search for the smallest pattern may take."""


@final
@dataclass
class Investigation:
    """One triage of one loaded model. `reported` is the reporter's own precision; `first` are
    attempts before all others; `repro` is the folder for a script that shows the fault.
    """

    subject: Subject
    question: Question
    reported: str
    says: Callable[[str], None] = lambda what: None
    log: steps.Log = field(init=False)
    route: Route = field(init=False)
    material: Material = field(init=False)
    first: list[Callable[[], Finding | None]] = field(default_factory=list)
    traps: list[Remark] = field(default_factory=list)
    asides: list[Remark] = field(default_factory=list)
    repro: Path | None = None

    def __post_init__(self) -> None:
        self.log = steps.Log(self.says)
        self.route = route(self.question.symptom)
        self.material = material(self.subject, self.question.prompts)
        self._start = self.subject.loaded.forwards
        self._clock = time.perf_counter()
        self._pair: Pair | None = None

    def run(self) -> Triage:
        """Everything, until something decides."""
        finding = self.fault()
        if finding is not None:
            small = self._smallest(finding)
            answer = self._answer(TriageAnswer.CONFIRMED, finding=finding, smallest=small)
            return answer if self.repro is None else self._with_script(answer, finding)
        read = tuple(remarks.remarks(self.subject, self.question, self.material))
        decisive = [remark for remark in read if remark.decides]
        lines, split = self._numerics()
        if self.traps or decisive:
            return self._answer(TriageAnswer.BEHAVIOUR, remarks=read, lines=lines, split=split)
        steps.control(self.subject, self.material, self._singles(), self.log)
        if self._visible(lines, split):
            return self._answer(TriageAnswer.NUMERICS, remarks=read, lines=lines, split=split)
        if any("template" in remark.title for remark in read):
            return self._answer(TriageAnswer.BEHAVIOUR, remarks=read, lines=lines)
        return self._answer(TriageAnswer.NOT_REPRODUCED, remarks=read, lines=lines)

    def fault(self) -> Finding | None:
        """The first finding that names its fault, else the best of those that failed."""
        found: list[Finding] = []
        for attempt in self._attempts():
            if self._spent and found:
                break
            finding = attempt()
            if finding is None or finding.verdict is not Verdict.FAIL:
                continue
            found.append(finding)
            if finding.diagnosis is not None and finding.diagnosis.how == "reproduced":
                return finding
        return min(found, key=_vague, default=None)

    @property
    def _spent(self) -> bool:
        return self.subject.loaded.forwards - self._start > self.question.passes

    def _attempts(self) -> list[Callable[[], Finding | None]]:
        loaded = implicit_findings(self.subject)
        own = self.question.pattern
        found: list[Callable[[], Finding | None]] = [
            partial(lambda each: each, each) for each in loaded
        ]
        found += self.first
        found.append(lambda: checks.scanned(self.subject, self.material, self.reported, self.log))
        names = present(self.route.probes.split(), registry.installed())
        judge = names[:1] if names[:1] == ["reference"] else []
        found += [partial(self._probe, name) for name in judge]
        if own.axes:
            found.append(
                lambda: steps.tried(
                    self.subject, self.material, [own], "the reporter's own way", self.log
                )
            )
        found += [partial(self._probe, name) for name in names if name not in judge]
        if self.question.symptom == "training":
            found.append(self._accumulated)
        if self.question.compiled:
            found.append(lambda: checks.compiled(self.subject, self.material, self.log))
        found.append(
            lambda: steps.tried(
                self.subject, self.material, self._singles(), "one axis at a time", self.log
            )
        )
        found.append(
            lambda: steps.tried(
                self.subject, self.material, self._crossed(), "axes crossed", self.log
            )
        )
        if self.question.symptom in LONG:
            found.append(lambda: steps.lengths(self.subject, self.log))
        return found

    def _probe(self, name: str) -> Finding | None:
        if self._spent:
            return None
        finding = steps.probed(self.subject, name, self.log)
        if name in self.route.traps:
            trap = remarks.trapped(self.subject, finding, self.reported)
            self.traps += [trap] if trap is not None else []
        if finding.verdict is Verdict.FAIL and remarks.by_the_way(finding):
            self.asides.append(
                Remark(title="not what was reported, but wrong here", words=finding.summary)
            )
            return None
        return finding

    def _accumulated(self) -> Finding | None:
        """A fault of accumulation steps: mentioned only, where what the labels mean has already
        explained the report.
        """
        finding = accumulated(self.subject, self.log)
        if finding is None or not self.traps:
            return finding
        advice = finding.diagnosis.advice if finding.diagnosis else ""
        self.traps.append(
            Remark(
                title="accumulation steps change the loss as well",
                words=f"{finding.summary}. {advice}",
            )
        )
        return None

    def _singles(self) -> list[CallPattern]:
        return axes.alone(axes.values(self.subject), self.route.axes)

    def _crossed(self) -> list[CallPattern]:
        return list(axes.crossed(axes.values(self.subject)))

    def _smallest(self, finding: Finding) -> Smallest | None:
        """The failing case as axes, cut down; else the probe itself on ever shorter rows."""
        self.says("the smallest pattern that still fails")
        case = next((each for each in finding.cases if verdict_of(each) is Verdict.FAIL), None)
        if case is None or finding.probe in (
            "finite-values",
            "load",
            "against",
            "compiled",
            "accumulation",
        ):
            return Smallest(words=f"one plain forward in {self.reported}")
        pattern = pattern_of(case.spec[0]) if case.spec else CallPattern()
        if pattern.axes and self._fails(pattern):
            small, found = smallest.of_pattern(self.subject, self.material, pattern, SEARCH)
            self._pair = axes.pair(
                self.subject, self.material.first(found.tokens or self.material.length), small
            )
            return found
        if finding.probe == steps.AXES:
            return Smallest(words=str(pattern))
        words = (
            case.name
            if not case.spec
            else f"{pattern} ({case.name})"
            if pattern.axes
            else str(pattern)
        )
        found = smallest.of_probe(self.subject, registry.load(finding.probe), words, SEARCH)
        return found if pattern.axes else replace(found, right=self._right())

    def _right(self) -> tuple[str, ...]:
        """Where the plain forward is wrong: what gives other logits and keeps the promise in every
        layer.
        """
        offered = {
            axis: found
            for axis, found in axes.values(self.subject).items()
            if axis in ("cache", "attn", "mask")
        }
        patterns = [
            pattern
            for pattern in axes.alone(offered, ())
            if pattern.cache in ("", "on") and self._fails(pattern)
        ]
        passes = {
            str(each): axes.spec_of(self.subject, self.material, each)[0] for each in patterns
        }
        return tuple(words for words, spec in passes.items() if smallest.kept(self.subject, spec))

    def _with_script(self, answer: Triage, finding: Finding) -> Triage:
        assert self.repro is not None
        self.says("a script that shows it")
        text, reason = reproduction(self.subject, finding, self._pair, self.repro)
        return replace(answer, script=text, no_script=reason)

    def _fails(self, pattern: CallPattern) -> bool:
        try:
            return axes.fails(axes.measure(self.subject, self.material, pattern))
        except (Unsupported, *REFUSALS):
            return False

    def _numerics(self) -> tuple[tuple[PrecisionLine, ...], GreedySplit | None]:
        """The ladder over the axes of the symptom, and where a greedy text turns, both with the
        reporter's own prompts.
        """
        spec = self.question
        if not (spec.symptom in (*NUMERIC, "long") or spec.generate or self.reported in HALF):
            return (), None
        self.says("the same in every precision")
        offered = axes.values(self.subject)
        about = {
            axis: found for axis, found in offered.items() if axis in self.route.axes
        } or offered
        patterns = (
            [self.question.pattern]
            if self.question.pattern.axes
            else axes.alone(about, self.route.axes)
        )
        rows, split = self.material, None
        if spec.generate:
            try:
                with self.subject.at(self.reported) as own:
                    split = precision.split(own, rows, spec.generate)
                    rows = precision.generated_rows(own, rows, spec.generate)
            except (Unsupported, *REFUSALS):
                split = None
        return tuple(precision.ladder(self.subject, rows, patterns, self.reported)), split

    def _visible(self, lines: tuple[PrecisionLine, ...], split: GreedySplit | None) -> bool:
        """Whether the reporter's own precision shows a difference at all."""
        own = next((line for line in lines if line.dtype == self.reported), None)
        if own is None:
            return False
        told = self.question.symptom in NUMERIC or self.reported in HALF
        return split is not None or own.flips > 0 or (told and own.max_abs > 0)

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
        told = (*self.traps, *self.asides, *remarks)
        triage = Triage(
            target=self.subject.name,
            question=self.question,
            answer=answer,
            headline="",
            finding=finding,
            smallest=smallest,
            steps=tuple(self.log.steps),
            remarks=told,
            lines=lines,
            split=split,
            read=tuple(facts(self.subject, self.reported)),
            seconds=time.perf_counter() - self._clock,
        )
        triage = replace(triage, headline=headline(triage, self.reported))
        return replace(triage, advice=advised(triage), falsifier=falsifier(triage))


def _vague(finding: Finding) -> int:
    """How little a finding says about its cause."""
    how = finding.diagnosis.how if finding.diagnosis else "unexplained"
    return ("reproduced", "repaired", "unexplained").index(how)
