"""The controls of a choice in the order of what they take on a model."""

from __future__ import annotations

import math

from attncheck.core import registry
from attncheck.core.choice import Choice, choosing, only
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Measurement
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.controls import control
from attncheck.run.runner import finding_of
from attncheck.run.worth.chosen import Chosen


def priced(plan: Chosen, subject: Subject) -> dict[str, dict[str, str]]:
    """The controls of every probe, those first that take the fewest forwards on this model; those
    that it has no place for, or that go unnoticed, last.
    """
    return {name: _of_probe(plan, subject, name) for name in plan.controls}


def _of_probe(plan: Chosen, subject: Subject, name: str) -> dict[str, str]:
    probe, questions, known = registry.load(name), plan.questions(name), plan.controls[name]
    with choosing(Choice(questions.__contains__)):
        healthy = finding_of(subject, probe).cases
        price = {
            fault: _price(subject, probe, fault, question, healthy)
            for fault, question in known.items()
        }
    return {fault: known[fault] for fault in sorted(known, key=price.__getitem__)}


def _price(
    subject: Subject, probe: Probe, fault: str, question: str, healthy: tuple[Measurement, ...]
) -> float:
    before = subject.loaded.forwards
    try:
        with only(question):
            noticed = control(subject, probe, faults.fault(fault), healthy).detected
    except Unsupported:
        return math.inf
    return subject.loaded.forwards - before if noticed else math.inf
