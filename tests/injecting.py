"""What the tests of single faults share: inject a fault, and expect a finding or a refusal."""

from __future__ import annotations

from functools import lru_cache

import pytest
from probing import loaded

from attncheck.core import registry
from attncheck.core.errors import CannotInject
from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.faults import registry as faults
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.run.controls import noticed
from attncheck.run.runner import finding_of


@lru_cache(maxsize=4)
def healthy(target: str) -> Subject:
    return loaded(target)


@lru_cache(maxsize=64)
def healthy_finding(target: str, probe: str) -> Finding:
    return finding_of(healthy(target), registry.load(probe))


def assert_found(
    fault: str, target: str, probe: str, module: str | None = None, *, named: str | None = None
) -> None:
    """The healthy target passes the probe; with the fault it is caught, named and located.

    `named` is the name that the diagnosis gives, where it is that of a fault that looks alike.
    """
    before = healthy_finding(target, probe)
    assert before.verdict not in (Verdict.FAIL, Verdict.ERROR)
    subject = healthy(target)
    with faults.fault(fault).injected(subject):
        found = diagnose(subject, finding_of(subject, registry.load(probe)))
    known = {case.name: case for case in before.cases}
    assert any(noticed(case, known.get(case.name)) for case in found.cases)
    assert found.diagnosis is not None
    assert (found.diagnosis.how, found.diagnosis.fault) == ("reproduced", named or fault)
    assert (found.location.module if found.location else None) == module


def assert_found_by_one(
    fault: str,
    target: str,
    probe: str,
    module: str | None = None,
    *,
    named: str | None = None,
    also: str = "",
) -> None:
    """The probe catches and names the fault, and no other probe notices it, save one."""
    subject = healthy(target)
    assert_found(fault, target, probe, module, named=named)
    for other in (name for name in registry.installed() if name not in (probe, also)):
        known = {case.name: case for case in healthy_finding(target, other).cases}
        with faults.fault(fault).injected(subject):
            found = finding_of(subject, registry.load(other))
        assert not [case for case in found.cases if noticed(case, known.get(case.name))], other


def assert_refused(fault: str, target: str, reason: str) -> None:
    """The target has no place for the fault, and the reason says why."""
    with pytest.raises(CannotInject, match=reason), faults.fault(fault).injected(healthy(target)):
        pass


def assert_predicted(fault: str) -> None:
    """A hypothesis of the fault gives the logits of the injected one; none of another fault does."""
    subject = healthy("builtin:gqa")
    trusted, spec = Trusted(subject), ForwardSpec(subject.inputs.tokens, chunks=(8, 1, 2, 13))
    right_BTV = subject.logits(spec)
    with faults.fault(fault).injected(subject):
        wrong_BTV = subject.logits(spec)
    assert max_abs_diff(right_BTV, wrong_BTV) > 1e-3
    hypotheses = list(faults.hypotheses(trusted, spec))
    own, others = (
        [
            max_abs_diff(each.logits(trusted, spec), wrong_BTV)
            for each in hypotheses
            if chosen(each.fault)
        ]
        for chosen in (fault.__eq__, fault.__ne__)
    )
    assert min(own) <= subject.budget.value
    assert len(others) > 20
    assert min(others) > 10 * subject.budget.value
