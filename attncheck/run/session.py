"""A run: load each target, run its probes, and keep a report of what is finished at any moment."""

from __future__ import annotations

import datetime
import gc
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
import transformers

from attncheck.core import registry
from attncheck.core.errors import NOTHING_RAN, Unsupported
from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.core.version import __version__
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.kept_state import process_untouched
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.report.model import Report, TargetReport, exit_code
from attncheck.run.gate import Gate
from attncheck.run.implicit import implicit_findings
from attncheck.run.runner import ControlStarted, Event, ProbeFinished, ProbeStarted, run_probes
from attncheck.suite.plan import Job
from attncheck.targets.load import load


@final
@dataclass(frozen=True)
class TargetStarted:
    """A target is about to be loaded."""

    target: str


@final
@dataclass(frozen=True)
class TargetLoaded:
    """A target is loaded: the report of it so far, without findings."""

    target: TargetReport


@final
@dataclass(frozen=True)
class TargetFinished:
    """All probes of a target ran, or it could not be loaded."""

    target: TargetReport


SessionEvent = (
    TargetStarted | TargetLoaded | TargetFinished | ProbeStarted | ControlStarted | ProbeFinished
)
Listener = Callable[[SessionEvent, Report], None]
Loader = Callable[[Job], Subject]
Examine = Callable[[Subject, Sequence[Probe]], Iterator[Event]]


def load_job(job: Job) -> Subject:
    """The subject of a job, loaded the usual way."""
    return load(job.target, job.settings)


@final
@dataclass
class Session:
    """One run. `report` is valid at any moment; `listener` gets every event with the report so
    far.
    """

    command: str
    listener: Listener
    fail_on: frozenset[Verdict] = frozenset()
    fail_fast: bool = False
    on_forward: Callable[[int], None] | None = None
    examine: Examine = field(default_factory=lambda: partial(run_probes, diagnose=Diagnoser()))
    loader: Loader = load_job
    gate: Gate = field(default_factory=Gate)
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self._clock = time.perf_counter()
        now = datetime.datetime.now(datetime.timezone.utc)
        started = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.report = Report(
            attncheck=__version__,
            command=self.command,
            started=started,
            environment=environment(),
            exit_code=NOTHING_RAN,
            fail_on=tuple(sorted(verdict.value for verdict in self.fail_on)),
        )

    def run(self, jobs: Iterable[Job]) -> Report:
        """Run jobs one after the other; a target that cannot be loaded does not stop the others."""
        with process_untouched():
            for job in jobs:
                self._tell(TargetStarted(job.target))
                self._run(job)
                if self.fail_fast and exit_code(self.report, self.fail_on) in (1, 2, 3):
                    break
        return self.report

    def adopt(self, target: TargetReport) -> None:
        """Take in the report of a target that ran elsewhere."""
        self._keep((*self.report.targets, target))

    def finished(self, code: int) -> Report:
        """The report with the exit code of the whole command."""
        self.report = replace(
            self.gate.closing(self.report),
            exit_code=code,
            seconds=time.perf_counter() - self._clock,
        )
        return self.report

    def _run(self, job: Job) -> None:
        started = time.perf_counter()
        try:
            probes = [registry.load(name, options, job.home) for name, options in job.probes]
            subject = self.loader(job)
            subject.loaded.on_forward = self.on_forward
        except Exception as error:
            self.adopt(failed_to_load(job, error, time.perf_counter() - started))
            self._tell(TargetFinished(self._last))
            return
        self.adopt(loaded_report(subject, time.perf_counter() - started))
        self._tell(TargetLoaded(self._last))
        for finding in implicit_findings(subject):
            self._found(job, finding, started)
        for event in self.examine(subject, probes):
            if isinstance(event, ProbeFinished):
                found = self._found(job, event.finding, started)
                if self.fail_fast and found.verdict is Verdict.FAIL and found.known is None:
                    break
            else:
                self._tell(event)
        self._tell(TargetFinished(self._last))
        del subject, probes
        gc.collect()

    def _found(self, job: Job, finding: Finding, started: float) -> Finding:
        finding, target = self.gate.settle(job, self._last, finding)
        seconds = time.perf_counter() - started
        target = replace(target, results=(*target.results, finding), seconds=seconds)
        self._keep((*self.report.targets[:-1], target))
        self._tell(ProbeFinished(target.target, finding))
        return finding

    @property
    def _last(self) -> TargetReport:
        return self.report.targets[-1]

    def _keep(self, targets: tuple[TargetReport, ...]) -> None:
        seconds = time.perf_counter() - self._clock
        report = replace(self.report, targets=targets, seconds=seconds)
        self.report = replace(report, exit_code=exit_code(report, self.fail_on))

    def _tell(self, event: SessionEvent) -> None:
        self.listener(event, self.report)


def environment() -> dict[str, Any]:
    """Versions and hardware of this run."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }


def failed_to_load(job: Job, error: Exception, seconds: float) -> TargetReport:
    """The report of a target that could not be loaded, with the reason in one line."""
    line = " ".join(str(error).split()) or type(error).__name__
    return TargetReport(target=job.target, settings=vars(job.settings), error=line, seconds=seconds)


def loaded_report(subject: Subject, load_seconds: float) -> TargetReport:
    """The report of a loaded target before any probe ran."""
    settings = {
        "attn": subject.attn,
        "dtype": subject.dtype_name,
        "device": str(subject.device),
        "seed": subject.settings.seed,
        "asked": {
            name: value
            for name, value in vars(subject.settings).items()
            if value not in (None, False)
        },
    }
    try:
        settings["length"] = subject.inputs.length
        size = f"input ({subject.inputs.length} tokens)"
        notes = tuple(
            f"{size} is shorter than the {each.kind} ({each.length})"
            for each in subject.inputs.unreached
        )
    except Unsupported as reason:
        notes = (str(reason),)
    notes = (*subject.loaded.remarks, *notes)
    return TargetReport(
        target=subject.name,
        model=subject.facts.as_dict(),
        settings=settings,
        seconds=load_seconds,
        load_seconds=load_seconds,
        notes=notes,
    )
