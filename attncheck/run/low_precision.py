"""What is wrong only in a low precision: how far many roundings move those logits, and the repair
that removes the difference.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch

from attncheck.core.divergence import PrecisionLevel
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Cause, Comparison, Measurement, low_only
from attncheck.faults import registry
from attncheck.faults.engine.fault import Fault
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.quantized import other_rounding
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import max_abs_finite
from attncheck.numerics.jitter import Jitter
from attncheck.probing import Probe
from attncheck.probing.probe import promised
from attncheck.run.measuring import all_cases

ROUNDINGS = 6
"""A near tie falls the other way in about half of them."""


def explained(
    subject: Subject, probe: Probe, cases: Iterable[Measurement]
) -> tuple[Measurement, ...]:
    """The cases; those that only this precision breaks with the budget of many roundings, and with
    the fault whose repair removes the difference.
    """
    known = {case.name: _roughly(subject, case) if low_only(case) else case for case in cases}
    broken = [case for case in known.values() if low_only(case)]
    for name in registry.names():
        fault = registry.fault(name)
        if fault.repair is None or not broken:
            continue
        repaired = _repaired(subject, probe, fault, {case.name for case in broken})
        for case in [each for each in broken if _mended(repaired.get(each.name))]:
            broken.remove(case)
            known[case.name] = _named(case, name, repaired[case.name], subject.dtype_name)
    known |= {case.name: _inside(probe, case) for case in broken}
    return tuple(known.values())


def _roughly(subject: Subject, case: Measurement) -> Measurement:
    """A case with what the worst of many roundings does to its two forwards, where that is more."""
    if not isinstance(case, Comparison) or case.rerun is None or case.nonfinite:
        return case
    moved = max(
        subject.passes.once(("moved", spec), partial(_moved, subject, spec))
        for spec in {case.rerun.got, case.rerun.want}
    )
    return _within(case, moved, f"worst of {ROUNDINGS} roundings {moved:.1e} x {HEADROOM:.0f}")


def _inside(probe: Probe, case: Measurement) -> Measurement:
    """A case that no repair explains. What a config states is decided above: of a layer's output
    inside a forward, nothing tells how far rounding in the layers before moves it.
    """
    if not isinstance(case, Comparison) or case.rerun is not None or case.nonfinite:
        return case
    if not promised(probe, case.name):
        return case
    return _within(case, math.inf, "inside a forward, which does not decide")


def _within(case: Comparison, moved: float, why: str) -> Comparison:
    budget = HEADROOM * moved
    if not budget > case.budget:
        return case
    low, *rest = case.ladder
    level = PrecisionLevel(dtype=low.dtype, max_abs=low.max_abs, budget=budget)
    return replace(case, budget=budget, budget_from=f"{low.dtype} {why}", ladder=(level, *rest))


def _moved(subject: Subject, spec: ForwardSpec) -> float:
    usual_BTV, moved = subject.logits(spec), 0.0
    for seed in range(ROUNDINGS):
        try:
            with _rounded_otherwise(subject, seed), subject.using(spec.attn):
                other_BTV = subject.passes.run(spec)
        except (*REFUSALS, Unsupported):
            return math.inf  # nothing tells what rounding does there
        moved = max(moved, max_abs_finite(other_BTV - usual_BTV))
    return moved


@contextlib.contextmanager
def _rounded_otherwise(subject: Subject, seed: int) -> Iterator[None]:
    quantized = other_rounding(subject.model, seed)
    with torch.no_grad(), subject.numerics(), quantized, Jitter(seed):
        yield


def _repaired(
    subject: Subject, probe: Probe, fault: Fault, names: Collection[str]
) -> dict[str, Measurement]:
    """Cases of a probe on the model without a fault of its dtype; none where it cannot run."""
    try:
        with fault.repaired(subject):
            return {case.name: case for case in all_cases(probe, subject, names)}
    except (*REFUSALS, Unsupported):
        return {}


def _mended(case: Measurement | None) -> bool:
    return isinstance(case, Comparison) and bool(case.positions) and not case.beyond


def _named(case: Measurement, fault: str, repaired: Measurement, dtype: str) -> Measurement:
    note = f"only in {dtype}: a repair of `{fault}` alone leaves {repaired.max_abs:.2g}"
    return replace(
        case,
        cause=Cause(fault, repaired.max_abs, repaired=True),
        note="; ".join(filter(None, (case.note, note))),
    )
