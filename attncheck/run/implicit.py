"""The implicit probes: they run on every target; a report holds them only where they have a case.

Each measures once. No fault is injected from outside, since none of them compares two calls of one
model; one that can check itself returns a `Control` from its generator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from attncheck.attention.layers import layer_index
from attncheck.core import registry
from attncheck.core.errors import ENDING, Unsupported
from attncheck.core.finding import Control, Evidence, Finding, Location
from attncheck.core.measurement import Comparison, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.distributed.ranks import failed_alone, working_on
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.runner import crashed, not_examined


def implicit_findings(subject: Subject) -> list[Finding]:
    """The findings of the implicit probes that apply to this model."""
    found = (implicit_finding(subject, name) for name in registry.installed(registry.IMPLICIT))
    return [finding for finding in found if finding is not None]


def implicit_finding(subject: Subject, name: str) -> Finding | None:
    """The finding of one implicit probe; None where it has no case."""
    started = time.perf_counter()
    working_on(f"the probe {name}")
    try:
        probe = registry.load(name)
        finding = _examined(subject, probe)
    except Unsupported as reason:
        finding = not_examined(probe, reason)
    except ENDING:
        raise
    except BaseException as error:
        failed_alone(error)
        finding = crashed(name, error)
    return finding and replace(finding, seconds=time.perf_counter() - started)


def _examined(subject: Subject, probe: Probe) -> Finding | None:
    cases, control = _measured(probe.measure(subject))
    if not cases:
        return None
    ruling = probe.judge(Evidence(measurements=cases))
    finding = Finding(
        probe=probe.name,
        verdict=ruling.verdict,
        summary=ruling.summary,
        cases=cases,
        controls=(control,) if control else (),
        location=_location(subject, cases),
    )
    if ruling.verdict is Verdict.SKIP:
        return replace(finding, skip_reason=ruling.summary)
    if control is not None and not control.detected:
        words = f"with {control.fault} injected the probe passes as well"
        return finding.with_verdict(Verdict.VACUOUS, words)
    return finding


def _measured(cases: Iterator[Measurement]) -> tuple[tuple[Measurement, ...], Control | None]:
    """All cases, and the control that the generator returns at its end, if any."""
    measured: list[Measurement] = []
    while True:
        try:
            measured.append(next(cases))
        except StopIteration as end:
            return tuple(measured), end.value


def _location(subject: Subject, cases: tuple[Measurement, ...]) -> Location | None:
    """The module that the first case names that did not pass."""
    named = (case for case in cases if case.cause.module and verdict_of(case) is not Verdict.PASS)
    case = next(named, None)
    if case is None:
        return None
    name = case.cause.module
    layer = layer_index(subject.model.get_submodule(name), name)
    first = case.divergence.first_position if isinstance(case, Comparison) else None
    return Location(module=name, layer=layer, query_position=first)
