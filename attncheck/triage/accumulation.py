"""One batch against the same rows in two accumulation steps: the losses must add up to the loss of
the batch.

The library's trainer hands `num_items_in_batch`, the labels of all steps together, to every model
whose forward takes keyword arguments, and then divides no more by the number of steps. A loss that
does not divide by it is too high by that number.

Axes: B batch, T positions.
"""

from __future__ import annotations

import time

import torch

from attncheck.core.errors import Unsupported, first_line
from attncheck.core.finding import Diagnosis, Finding, Measurement, Verdict, verdict_of
from attncheck.model.inputs import Tokens
from attncheck.model.loss import ITEMS, Asked, answered, own_shift, told_items
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.losses import IGNORED
from attncheck.triage.steps import Log

ROWS = 4
ROUNDING = 64
ADVICE = (
    "Sum the cross entropy and divide by `num_items_in_batch` where it is given, or set `accepts_loss_kwargs = False` on the "
    "model, so that the trainer averages over the steps itself."
)


def accumulated(subject: Subject, log: Log) -> Finding | None:
    """The finding of a loss that accumulation steps change; None where they do not, or where the
    trainer divides itself.
    """
    log.says("accumulation steps")
    started = time.perf_counter()
    if not told_items(subject):
        log.add(
            "accumulation",
            Verdict.SKIP,
            "forward takes no keyword arguments: the trainer averages over the steps",
            started,
        )
        return None
    try:
        case = _measured(subject)
    except (Unsupported, *REFUSALS) as reason:
        log.add("accumulation", Verdict.SKIP, first_line(reason), started)
        return None
    verdict = verdict_of(case)
    log.add("accumulation", verdict, f"one batch of {ROWS} against two steps: {case.note}", started)
    if verdict is not Verdict.FAIL:
        return None
    found = Diagnosis(fault="loss-not-accumulated", how="reproduced", residual=0.0, advice=ADVICE)
    return Finding(
        probe="accumulation", verdict=verdict, summary=case.note, cases=(case,), diagnosis=found
    )


def _measured(subject: Subject) -> Measurement:
    length = subject.inputs.length
    rows = tuple(subject.inputs.fresh(length, salt=61 + row) for row in range(ROWS))
    labels = tuple(
        row[: length - 3 * number] + (IGNORED,) * (3 * number) for number, row in enumerate(rows)
    )
    own = own_shift(subject)
    items = sum(token != IGNORED for row in labels for token in row[own:])
    whole = _loss(subject, rows, labels, items)
    half = ROWS // 2
    parts = _loss(subject, rows[:half], labels[:half], items) + _loss(
        subject, rows[half:], labels[half:], items
    )
    return Measurement(
        name="accumulation",
        max_abs=abs(whole - parts),
        budget=ROUNDING * torch.finfo(subject.dtype).eps * abs(whole),
        positions=items,
        note=f"the loss is {whole:.4g} at once and {parts:.4g} in two steps, `{ITEMS}` being {items} in each",
    )


def _loss(subject: Subject, rows: Tokens, labels: Tokens, items: int) -> float:
    spec = Asked(
        tokens=rows, labels_BT=subject.passes.ids(labels), own=own_shift(subject), items=items
    )
    return float(answered(subject, spec)[1])
