"""How a run asks its probes of a model: with controls, diagnosis and traps, within its extent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from attncheck.core.extent import RunExtent
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.runner import Backing, Event, run_probes
from attncheck.run.traps import Traps
from attncheck.run.worth.limited import Limited

EARLY = ("decode-paths",)
"""Probes that run first, wherever they stand in a report: most faults show there, and others share
its passes.
"""
Examine = Callable[[Subject, Sequence[Probe], RunExtent], Iterator[Event]]


def usual_examination(repro: Path | None = None) -> Examine:
    """Probes with controls and diagnosis; traps of the library are set aside. Each failure leaves a
    script of its own in the folder `repro`.
    """
    run = partial(run_probes, diagnose=Diagnoser(repro), traps=Traps())

    def examined(subject: Subject, probes: Sequence[Probe], extent: RunExtent) -> Iterator[Event]:
        def one(probe: Probe, backing: Backing) -> Iterator[Event]:
            return run(subject, [probe], backing=backing)

        if extent.whole:
            return run(subject, sorted(probes, key=lambda probe: probe.name not in EARLY))
        return Limited(one, extent).examine(subject, probes)

    return examined
