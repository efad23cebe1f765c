"""A run that holds its model against a recording as well: one more finding behind the probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attncheck.core.extent import RunExtent
from attncheck.golden.answer import PROBE
from attncheck.golden.file import Golden, load
from attncheck.golden.gate import check_same, gate_finding
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.examining import Examine
from attncheck.run.runner import Event, ProbeFinished, ProbeStarted
from attncheck.run.session import Loader, Session
from attncheck.suite.plan import Job


def hold_also(session: Session, path: Path) -> None:
    """Have a session hold each model against a recording, too; a model that is not the recorded one
    is reported as one that could not be loaded.

    Raises:
        TargetError: the file is no recording.
    """
    golden = load(path)
    session.loader = _checked(golden, session.loader)
    session.examine = _with_gate(golden, session.examine)


def _checked(golden: Golden, loader: Loader) -> Loader:
    def load_same(job: Job) -> Subject:
        subject = loader(job)
        check_same(golden, subject)
        return subject

    return load_same


def _with_gate(golden: Golden, examine: Examine) -> Examine:
    def examined(subject: Subject, probes: Sequence[Probe], extent: RunExtent) -> Iterator[Event]:
        yield from examine(subject, probes, extent)
        yield ProbeStarted(subject.name, PROBE)
        yield ProbeFinished(subject.name, gate_finding(golden, subject))

    return examined
