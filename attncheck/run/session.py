"""A run: load each target, run its probes, and keep a report of what is finished at any moment."""

from __future__ import annotations

import contextlib
import datetime
import gc
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core import registry
from attncheck.core.errors import (
    ENDING,
    FAILED,
    INTERNAL,
    INTERRUPTED,
    NOTHING_RAN,
    USAGE,
)
from attncheck.core.finding import Finding
from attncheck.core.shard import Shard
from attncheck.core.skips import LEFT_OUT, questions
from attncheck.core.verdict import Verdict
from attncheck.core.version import __version__
from attncheck.core.visible import made_visible, shortened
from attncheck.golden.answer import PROBE
from attncheck.model.kept_state import process_untouched
from attncheck.model.subject import Subject
from attncheck.report.model import Report, TargetReport, exit_code
from attncheck.run.beginning import environment, failed_to_load, loaded_report
from attncheck.run.deadline import TimeUp, at_home, hung
from attncheck.run.events import TargetFinished, TargetLoaded, TargetStarted
from attncheck.run.examining import Examine, usual_examination
from attncheck.run.gate import Gate
from attncheck.run.implicit import implicit_findings
from attncheck.run.on_engine import engine_findings, on_engine
from attncheck.run.runner import ControlStarted, ProbeFinished, ProbeStarted
from attncheck.suite.plan import Job
from attncheck.targets.load import load

SessionEvent = (
    TargetStarted | TargetLoaded | TargetFinished | ProbeStarted | ControlStarted | ProbeFinished
)
Placed = tuple[int, TargetReport]
Listener = Callable[[SessionEvent, Report], None]
Loader = Callable[[Job], Subject]


def load_job(job: Job) -> Subject:
    """The subject of a job, loaded the usual way."""
    return load(job.target, job.settings)


@final
@dataclass
class Session:
    """One run. `report` is valid at any moment; `listener` gets every event with the report so
    far. `limit` makes the context in which one target is loaded and checked: it may raise `TimeUp`.
    """

    command: str
    listener: Listener
    fail_on: frozenset[str] = frozenset()
    accepted_skips: tuple[str, ...] | None = None
    shard: Shard | None = None
    fail_fast: bool = False
    on_forward: Callable[[int], None] | None = None
    examine: Examine = field(default_factory=usual_examination)
    loader: Loader = load_job
    gate: Gate = field(default_factory=Gate)
    limit: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    report: Report = field(init=False)
    timed_out: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._clock = time.perf_counter()
        self._implicit = {*registry.installed(registry.IMPLICIT), PROBE}
        self._jobs: Sequence[Job] = ()
        self._order: tuple[str, ...] = ()
        self._done, self._running = 0, ""
        now = datetime.datetime.now(datetime.timezone.utc)
        started = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.report = Report(
            attncheck=__version__,
            command=self.command,
            started=started,
            environment=environment(),
            exit_code=NOTHING_RAN,
            fail_on=tuple(sorted(map(str, self.fail_on))),
            accepted_skips=self.accepted_skips,
            shard=self.shard,
        )

    def run(self, jobs: Sequence[Job]) -> Report:
        """Run jobs one after the other; a target that cannot be loaded does not stop the others."""
        self._expect(jobs)
        with process_untouched():
            for job in jobs:
                self._tell(TargetStarted(shortened(job.target)))
                self._run(job)
                if self._stops():
                    break
        return self._completed()

    def collect(
        self,
        jobs: Sequence[Job],
        finished: Generator[Placed],
        begun: Callable[[], Iterator[Placed]],
    ) -> Report:
        """Take in the reports of jobs that run elsewhere, each with its place among them, in which
        the report lists them. Where the run is stopped, `begun` yields what was found so far, also
        on those that `finished` has not come to.
        """
        self._expect(jobs)
        targets: dict[int, TargetReport] = {}

        def take(place: int, target: TargetReport) -> TargetReport:
            target = replace(target, place=jobs[place].place)
            targets[place] = self.gate.settle_all(jobs[place], target)
            self._keep(tuple(targets[each] for each in sorted(targets)))
            return targets[place]

        try:
            with contextlib.closing(finished):
                for place, target in finished:
                    self._done += 1
                    self._listed(take(place, target))
                    if self._stops():
                        break
        except KeyboardInterrupt:
            for place, target in begun():
                if place not in targets:
                    take(place, target)
            raise
        return self._completed()

    def _listed(self, target: TargetReport) -> None:
        for finding in target.results:
            self._tell(ProbeFinished(target.target, finding))
        self._tell(TargetFinished(target))

    def finished(self, code: int) -> Report:
        """The report with the exit code of the whole command."""
        self.report = replace(
            self.gate.closing(self.report),
            exit_code=code,
            seconds=time.perf_counter() - self._clock,
        )
        return self.report

    def _expect(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._done = jobs, 0
        self._keep(self.report.targets)

    def _run(self, job: Job) -> None:
        started, self._running = time.perf_counter(), ""
        self._now = job, started
        try:
            with at_home(), self.limit():
                self._check(job, started)
        except TimeUp as hang:
            self.time_is_up(hang)
        self._done += 1
        self._keep(self.report.targets)
        self._tell(TargetFinished(self._last))
        if not self._last.error:  # nothing was loaded otherwise
            gc.collect()

    def time_is_up(self, hang: TimeUp) -> None:
        """Note that the target of now hangs, and in what."""
        (job, started), self.timed_out = self._now, True
        if self._running:
            self._found(job, hung(self._running, hang), started)
        else:
            self._adopt(failed_to_load(job, hang, time.perf_counter() - started))

    def _check_engine(self, job: Job, started: float) -> None:
        """The findings of an engine; one that is gone keeps what was measured of it."""
        before = self.report.targets
        try:
            with engine_findings(job, self._asking) as (loaded, findings):
                seconds = time.perf_counter() - started
                self._adopt(replace(loaded, seconds=seconds, load_seconds=seconds))
                self._tell(TargetLoaded(self._last))
                for finding in findings:
                    self._found(job, finding, started)
        except ENDING:
            raise
        except BaseException as error:
            failed = failed_to_load(job, error, time.perf_counter() - started)
            begun = self.report.targets[len(before) :]
            self._keep(
                (*before, *(replace(each, error=failed.error) for each in begun or [failed]))
            )

    def _asking(self, what: str) -> None:
        self._running = what
        self._tell(ProbeStarted(self._last.target, what))

    def _check(self, job: Job, started: float) -> None:
        self._order = ()
        if on_engine(job):
            self._check_engine(job, started)
            return
        try:
            probes = [registry.load(name, options, job.home) for name, options in job.probes]
            subject = self.loader(job)
            subject.loaded.on_forward = self.on_forward
            loaded = loaded_report(subject, time.perf_counter() - started)
        except ENDING:
            raise
        except BaseException as error:
            self._adopt(failed_to_load(job, error, time.perf_counter() - started))
            return
        self._adopt(loaded)
        self._running = registry.FIRST[0]
        self._tell(TargetLoaded(loaded))
        for finding in implicit_findings(subject):
            self._found(job, finding, started)
        first = (finding.probe for finding in self._last.results)
        self._order = (*first, *(probe.name for probe in probes))
        for event in self.examine(subject, probes, job.extent):
            if isinstance(event, ProbeFinished):
                found = self._found(job, event.finding, started)
                if self.fail_fast and found.verdict is Verdict.FAIL and found.known is None:
                    break
            else:
                self._running = event.probe
                self._tell(event)

    def _found(self, job: Job, finding: Finding, started: float) -> Finding:
        finding, target = self.gate.settle(job, self._last, made_visible(finding))
        seconds = time.perf_counter() - started
        # in the order that was asked for, whichever ran first
        place = {name: number for number, name in enumerate(self._order)}
        found = (*target.results, finding)
        results = tuple(sorted(found, key=lambda each: place.get(each.probe, len(place))))
        asked = questions(results)
        target = replace(target, results=results, seconds=seconds, questions=asked)
        self._keep((*self.report.targets[:-1], target))
        self._tell(ProbeFinished(target.target, finding))
        return finding

    def _stops(self) -> bool:
        return self.fail_fast and exit_code(self.report, self.fail_on) in (FAILED, USAGE, INTERNAL)

    @property
    def _last(self) -> TargetReport:
        return self.report.targets[-1]

    def _adopt(self, target: TargetReport) -> None:
        target = replace(target, place=self._now[0].place)
        self._keep((*self.report.targets, target))

    def _keep(self, targets: tuple[TargetReport, ...]) -> None:
        """The report so far: whoever finds it after a crash reads that it is not whole."""
        done, total, what = self._progress(targets)
        self.report = replace(
            self.report,
            targets=targets,
            seconds=time.perf_counter() - self._clock,
            exit_code=INTERRUPTED,
            incomplete=f"{done} of {total} {what}",
        )

    def _progress(self, targets: Sequence[TargetReport]) -> tuple[int, int, str]:
        if len(self._jobs) != 1:
            return self._done, len(self._jobs), "targets"
        ran = [finding.probe for target in targets[-1:] for finding in target.results]
        done = sum(probe not in self._implicit for probe in ran)
        return done, len(self._jobs[0].probes), "probes"

    def _completed(self) -> Report:
        report = self.report
        done, total, _ = self._progress(report.targets)
        if self._stops() and done < total:
            words = f"stopped at the first failure, after {report.incomplete}"
            report = replace(report, notes=(*report.notes, words))
        if self.shard is not None and not self._jobs:
            words = f"shard {self.shard} has none of the {self.shard.jobs} targets"
            report = replace(report, notes=(*report.notes, words))
        if left := report.questions.reasons.get(LEFT_OUT, 0):
            words = f"{left} cases and probes left out by --quick or --budget: no whole run"
            report = replace(report, notes=(*report.notes, words))
        self.report = replace(report, exit_code=exit_code(report, self.fail_on), incomplete="")
        return self.report

    def _tell(self, event: SessionEvent) -> None:
        self.listener(event, self.report)
