"""Plain calls in which a fault may show, for findings whose cases carry no forwards."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.failure import REFUSED, open_case, unmeasured
from attncheck.diagnosis.measured import differs_alone
from attncheck.diagnosis.outside import carried_elsewhere
from attncheck.model.cache_kinds import promised
from attncheck.model.forward_spec import ForwardSpec, all_ones
from attncheck.model.kept_state import model_untouched
from attncheck.model.padding import left_padded, pad_rows
from attncheck.model.subject import Subject


def stand_ins(subject: Subject, finding: Finding) -> list[Measurement]:
    """Plain forwards that show the fault, where no failing case carries its own; those with padding
    first where nothing fails without.
    """
    failed = [case.name for case in finding.cases if verdict_of(case) is Verdict.FAIL]
    specs = list(plain_calls(subject))
    if failed and all("padding" in name for name in failed):
        specs.sort(key=lambda spec: spec.mask is None or spec.mask == all_ones(spec.tokens))
    cases = (unmeasured("a plain call", spec, spec) for spec in specs)
    return [case for case in cases if _shows(subject, case)]


def plain_calls(subject: Subject) -> Iterator[ForwardSpec]:
    """Ways to call a model that between them show most faults."""
    tokens, length = subject.inputs.tokens, subject.inputs.length
    third = length // 3
    chunks = (third, 1, 2, length - third - 3)
    rows = (*tokens, subject.inputs.other(subject.inputs.row, salt=3))
    yield ForwardSpec(tokens)
    yield ForwardSpec(tokens, chunks=chunks)
    yield ForwardSpec(rows, chunks=chunks)
    yield ForwardSpec(tokens, mask=all_ones(tokens))
    yield pad_rows(subject).spec("right")
    # a model that counts positions and takes none counts the padding in front, by design
    placed = bool(subject.can.takes_positions)
    if placed or not subject.can.counts_positions:
        yield pad_rows(subject).spec("left", explicit=placed)
        yield left_padded(subject, pad_rows(subject), chunks=(length - 2, 1, 1))
    if promised("static", subject.model):  # of another class such a cache shows a fault of its own
        yield ForwardSpec(tokens, chunks=chunks, cache_kind="static")


def _shows(subject: Subject, case: Measurement) -> bool:
    """Whether a call fails on the model as it was loaded, with nothing kept of another."""
    try:
        with model_untouched(subject.model):
            failure = open_case(subject, case)
            if failure.wrong or carried_elsewhere(failure) is not None:
                return True
            return differs_alone(failure)
    except REFUSED:
        return False
