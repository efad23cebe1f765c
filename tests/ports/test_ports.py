"""Hand-written ports: the healthy twin is not accused by any probe, the faulty one is caught."""

from __future__ import annotations

import pytest

from attncheck.core import registry
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.run.runner import NONE, USUAL, ProbeFinished, finding_of, run_probes
from ports.catalogue import PORTS, Port

BACKED = ("Capped", "CroppedCount", "Keywords", "NanoWhole", "Sized")
"""Ports whose passes are backed by controls as well, one of each form."""
HEALTHY = (Verdict.PASS, Verdict.WARN, Verdict.SKIP)


def subject_of(port: Port, *, flaw: bool) -> Subject:
    return Subject.of(port.build(flaw), port.name, dtype="float64")


@pytest.mark.parametrize("port", PORTS, ids=lambda each: each.name)
def test_no_probe_accuses_the_healthy_twin(port: Port) -> None:
    probes = [registry.load(name) for name in registry.installed()]
    backing = USUAL if port.name in BACKED else NONE
    events = run_probes(subject_of(port, flaw=False), probes, backing=backing)
    findings = [event.finding for event in events if isinstance(event, ProbeFinished)]
    assert [(each.probe, each.summary) for each in findings if each.verdict not in HEALTHY] == []


@pytest.mark.parametrize("port", PORTS, ids=lambda each: each.name)
def test_the_fault_is_caught(port: Port) -> None:
    found = finding_of(subject_of(port, flaw=True), registry.load(port.probe))
    assert found.verdict is Verdict.FAIL, found.summary


def test_there_are_enough_of_them() -> None:
    assert len(PORTS) >= 20
    assert len({port.report for port in PORTS}) == len(PORTS)
