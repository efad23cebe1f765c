"""What probe tests share: run probes to findings, and plant a fault around one probe."""

from __future__ import annotations

from attncheck.core import registry
from attncheck.core.finding import Finding, Measurement
from attncheck.core.settings import Settings
from attncheck.faults.catalogue import FAULTS
from attncheck.model.subject import Subject
from attncheck.run.runner import ProbeFinished, noticed, run_probes
from attncheck.targets.load import load

HEALTHY = ("gqa", "mha", "window", "alibi", "moe")


def loaded(target: str, **settings: object) -> Subject:
    return load(target, Settings(**settings))  # type: ignore[arg-type]


def finding(subject: Subject, name: str, **options: object) -> Finding:
    (event,) = [
        e
        for e in run_probes(subject, [registry.load(name, options)])
        if isinstance(e, ProbeFinished)
    ]
    return event.finding


def case(found: Finding, name: str) -> Measurement:
    return next(each for each in found.cases if each.name == name)


def caught_by(subject: Subject, probe: str, fault: str) -> Measurement | None:
    """The first case that comes out worse with the fault planted, or None."""
    measured = registry.load(probe)
    healthy = {each.name: each for each in measured.measure(subject)}
    inject = FAULTS[fault]
    with inject.inject(subject), subject.passes.under(fault, inject.on_cache_only):
        return next(
            (each for each in measured.measure(subject) if noticed(each, healthy.get(each.name))),
            None,
        )
