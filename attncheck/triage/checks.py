"""Checks that are no probes: finite values, and losses of accumulation steps.

Axes: B batch, T positions.
"""

from __future__ import annotations

import torch

from attncheck.attention.layers import layer_number
from attncheck.core.divergence import Divergence
from attncheck.core.errors import first_line
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import AtMost, Cause, Comparison, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis import lost_numbers
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.finite import NotFinite, Overflow, bad_weights, overflow
from attncheck.model.inputs import Tokens
from attncheck.model.loss import ITEMS, LossCall, logits_and_loss, own_shift, takes_items
from attncheck.model.subject import Subject
from attncheck.numerics.losses import IGNORED
from attncheck.triage.answer import Remark
from attncheck.triage.material import Material
from attncheck.triage.steps import Log

SEQUENCES = 4
ROUNDING = 64
ACCUMULATION_ADVICE = (
    "Sum the cross entropy and divide by `num_items_in_batch` where it is given, or set "
    "`accepts_loss_kwargs = False` on the model, so that the trainer averages over the steps."
)


def finite_values(subject: Subject, material: Material, dtype: str, log: Log) -> Finding | None:
    """The first module that loses a finite value in a plain forward in the reporter's precision."""
    log.says("values that are not finite")
    damaged = bad_weights(subject.model)
    try:
        with subject.at(dtype) as view:
            rows = dict.fromkeys(material.rows)
            found = next(filter(None, (overflow(view, row) for row in rows)), None)
    except REFUSED as reason:
        log.add("finite values", Verdict.SKIP, f"{dtype}: {first_line(reason)}")
        return None
    if found is None or found.first is None:
        words = f"every value of a plain forward is finite in {dtype}"
        if damaged:  # some kernels swallow what is not a number
            words += f", although {damaged[0].name} holds {damaged[0].words}"
        log.add("finite values", Verdict.WARN if damaged else Verdict.PASS, words)
        return None
    log.add("finite values", Verdict.FAIL, found.words(dtype))
    return _damaged_finding(damaged[0]) if damaged else _overflow_finding(found, found.first, dtype)


def _damaged_finding(weight: NotFinite) -> Finding:
    words = f"the weights themselves are not finite: {weight.name} holds {weight.words}"
    return _finding("weights", weight, words, lost_numbers.WEIGHTS, lost_numbers.DAMAGED_ADVICE)


def _overflow_finding(found: Overflow, first: NotFinite, dtype: str) -> Finding:
    advice = lost_numbers.overflow_advice(dtype)
    name = f"one plain forward in {dtype}"
    return _finding(name, first, found.words(dtype), lost_numbers.OVERFLOW, advice)


def _finding(case: str, first: NotFinite, words: str, fault: str, advice: str) -> Finding:
    counted = AtMost(
        case,
        float(first.count),
        "values that are not finite",
        nonfinite=first.count,
        cause=Cause(module=first.module),
    )
    return Finding(
        probe="finite-values",
        verdict=Verdict.FAIL,
        summary=words,
        cases=(counted,),
        diagnosis=Diagnosis(fault=fault, how="reproduced", residual=0.0, advice=advice),
        location=Location(module=first.module, layer=layer_number(first.module)),
    )


def accumulated(subject: Subject, log: Log) -> Finding | None:
    """The loss of one batch against the same sequences in two accumulation steps.

    The library's trainer passes `num_items_in_batch`, the labels of all steps together, to every
    model whose forward takes keyword arguments, and then no longer divides by the number of steps.
    A loss that does not divide by it is too high by that number.
    """
    log.says("accumulation steps")
    if not takes_items(subject):
        words = "forward takes no keyword arguments: the trainer averages over the steps"
        log.add("accumulation", Verdict.SKIP, words)
        return None
    try:
        case = _accumulation_case(subject)
    except REFUSED as reason:
        log.add("accumulation", Verdict.SKIP, first_line(reason))
        return None
    verdict = verdict_of(case)
    words = f"one batch of {SEQUENCES} against two steps: {case.note}"
    log.add("accumulation", verdict, words)
    if verdict is not Verdict.FAIL:
        return None
    return Finding(
        probe="accumulation",
        verdict=verdict,
        summary=case.note,
        cases=(case,),
        diagnosis=Diagnosis(
            fault="loss-not-accumulated",
            how="reproduced",
            residual=0.0,
            advice=ACCUMULATION_ADVICE,
        ),
    )


def accumulation_trap(finding: Finding) -> Remark:
    """The same where labels have explained the report already."""
    title = "accumulation steps change the loss as well"
    return Remark(title=title, words=f"{finding.summary}. {ACCUMULATION_ADVICE}")


def _accumulation_case(subject: Subject) -> Comparison:
    length, half = subject.inputs.length, SEQUENCES // 2
    rows = tuple(subject.inputs.fresh(length, salt=61 + row) for row in range(SEQUENCES))
    labels = tuple(
        row[: length - 3 * number] + (IGNORED,) * (3 * number) for number, row in enumerate(rows)
    )
    own = own_shift(subject)
    items = sum(token != IGNORED for row in labels for token in row[own:])
    whole = _loss(subject, rows, labels, items)
    steps = _loss(subject, rows[:half], labels[:half], items)
    steps += _loss(subject, rows[half:], labels[half:], items)
    return Comparison(
        "accumulation",
        Divergence(max_abs=abs(whole - steps), positions=items),
        ROUNDING * torch.finfo(subject.dtype).eps * abs(whole),
        note=f"the loss is {whole:.4g} at once and {steps:.4g} in two steps, "
        f"`{ITEMS}` being {items} in each",
    )


def _loss(subject: Subject, rows: Tokens, labels: Tokens, items: int) -> float:
    request = LossCall(
        tokens=rows, labels_BT=subject.passes.ids(labels), own=own_shift(subject), items=items
    )
    return float(logits_and_loss(subject, request)[1])
