"""Run a probe with a fault injected: does it notice?"""

from __future__ import annotations

from attncheck.core.allocator import return_freed_memory
from attncheck.core.errors import CannotInject, Unsupported, first_line
from attncheck.core.finding import Control
from attncheck.core.measurement import BrokenCall, Measurement, Quantity, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.faults.engine.fault import Fault
from attncheck.model.attempts import detecting
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.measuring import measured_cases

MUCH_WORSE = 1.5


def control(
    subject: Subject, probe: Probe, fault: Fault, healthy: tuple[Measurement, ...]
) -> Control:
    """Whether the probe notices one injected fault; it stops at the first case that the fault
    breaks.

    Raises:
        CannotInject: the model has no place for the fault, or raises with it injected.
    """
    return_freed_memory()
    before = {case.name: case for case in healthy}
    largest: float | None = None
    raised = ""
    with fault.injected(subject), detecting():
        try:
            for case in measured_cases(probe, subject):
                if case.max_abs is not None:
                    largest = max(largest or 0.0, case.max_abs)
                if isinstance(case, BrokenCall) and not isinstance(
                    before.get(case.name), BrokenCall
                ):
                    raised = raised or f"the model raises with it injected ({case.note})"
                if case.expect == "skip" and _judged(before.get(case.name)):
                    raised = raised or f"with it injected cases are skipped ({case.note})"
                if noticed(case, before.get(case.name)):
                    return Control(
                        fault=fault.name, detected=True, max_abs=case.max_abs, case=case.name
                    )
        except Unsupported as reason:
            raise CannotInject(str(reason)) from reason
        except Exception as error:
            raise CannotInject(
                f"the model raises with it injected ({first_line(error)})"
            ) from error
    if raised:
        raise CannotInject(raised)
    return Control(fault=fault.name, detected=False, max_abs=largest)


def _judged(case: Measurement | None) -> bool:
    return case is not None and case.judged


def noticed(case: Measurement, healthy: Measurement | None) -> bool:
    """Whether a case comes out worse with the fault than without it."""
    now, before = verdict_of(case), verdict_of(healthy) if healthy is not None else Verdict.PASS
    if now not in (Verdict.FAIL, Verdict.WARN) or isinstance(case, BrokenCall):
        return False  # a model that raises under a fault shows nothing of it
    if before not in (Verdict.FAIL, Verdict.WARN):
        return True
    if now is Verdict.FAIL and before is Verdict.WARN:
        return True
    return (
        isinstance(case, Quantity)
        and isinstance(healthy, Quantity)
        and case.value > MUCH_WORSE * healthy.value
    )
