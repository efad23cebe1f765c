"""All cases of a probe: whichever process has the worst one, whatever ends the probe early, and in
float32 where float64 breaks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from attncheck.core.choice import kept
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import (
    BrokenCall,
    Measurement,
    Skipped,
    not_measured,
    verdict_of,
)
from attncheck.core.verdict import worst
from attncheck.distributed.ranks import gathered
from attncheck.model.attempts import asking
from attncheck.model.subject import Subject
from attncheck.probing import Probe

LOWER = "float32"


def measured_cases(probe: Probe, subject: Subject) -> Iterator[Measurement]:
    """The cases of a probe; where processes share the model, each from the process where it is
    worst. What the run does not ask is dropped.
    """
    for case in probe.measure(subject):
        if kept(case.name, case.note):
            yield _worst(gathered(f"the cases of {probe.name}", case))


def _worst(cases: Sequence[Measurement]) -> Measurement:
    order = [verdict_of(case) for case in cases]
    rank = order.index(worst(order))
    found = cases[rank]
    return replace(found, note=f"{found.note} (rank {rank})".strip()) if rank else found


def all_cases(
    probe: Probe, subject: Subject, names: Collection[str] | None = None
) -> tuple[Measurement, ...]:
    """Every case, or at least those of these names; where the probe cannot go on, the cases before
    that stay, with the reason.
    """
    found: list[Measurement] = []
    try:
        with asking(names):
            for case in measured_cases(probe, subject):
                found.append(case)
    except Unsupported as reason:
        if not found:
            raise
        found.append(not_measured("the cases behind these", reason))
    return tuple(found)


def settled(
    subject: Subject, probe: Probe, measured: tuple[Measurement, ...]
) -> tuple[Measurement, ...]:
    """Measure again in float32 what float64 broke on: not every kernel takes float64."""
    broken = {case.name for case in measured if isinstance(case, BrokenCall)}
    if not broken or subject.dtype_name != "float64" or subject.passes.injected:
        return measured
    with subject.at(LOWER) as lower:
        try:
            cases = {case.name: case for case in all_cases(probe, lower, broken)}
        except Unsupported:
            return measured
    taken = {name: case for name, case in cases.items() if name in broken}
    return tuple(_answering(case, taken.get(case.name, case)) for case in measured)


def _answering(broken: Measurement, lower: Measurement) -> Measurement:
    """The case of float32; the broken one where float32 does not have it, and tells nothing."""
    return broken if isinstance(lower, Skipped) else lower
