"""Calls with labels beyond a plain row: ignored, padded, packed, accumulated and random ones.

Axes: B batch, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from attncheck.probing import (
    IGNORED,
    ITEMS,
    STEPS,
    Figure,
    LossCall,
    Measurement,
    Row,
    Subject,
    Unsupported,
    attempt,
    not_measured,
    skipped,
    takes_items,
)
from attncheck_probes.labels.loss_answer import LossAnswer, ask
from attncheck_probes.labels.loss_mismatch import accumulated, explained, in_steps, measured


def with_labels(
    subject: Subject, *rows: Row, own: int, ignored: Sequence[Sequence[int]] = ()
) -> LossCall:
    """Rows with themselves as labels, except where a row's are ignored. Where nothing is shifted,
    the labels are other tokens.

    A model that predicts the tokens that it gets can be so sure of them that no loss is left to
    compare.
    """
    labels = rows if own else tuple(subject.inputs.other(row, salt=43) for row in rows)
    labels_BT = subject.passes.ids(labels)
    for number, where in enumerate(ignored):
        labels_BT[number, list(where)] = IGNORED
    return LossCall(tokens=rows, labels_BT=labels_BT, own=own)


def with_ignored(subject: Subject, own: int) -> LossCall:
    """Two rows: in the first a third of the labels and the last but one are ignored, in the second
    all.
    """
    row, third = subject.inputs.row, range(subject.inputs.length // 3)
    return with_labels(subject, row, row, own=own, ignored=((*third, -2), range(len(row))))


def padded(subject: Subject, name: str, own: int, padding: int) -> Measurement:
    """A whole row, one padded on the right, and one padded further on the left."""
    subject.can.mask_2d.require()
    row, pad = subject.inputs.row, (subject.inputs.pool[0],)
    few = min(padding, len(row) - 3)
    many = min(2 * few, len(row) - 3)
    rows = (row, row[:-few] + pad * few, pad * many + row[many:])
    ignored = ((), range(len(row) - few, len(row)), range(many + 1))
    call = with_labels(subject, *rows, own=own, ignored=ignored)
    mask_BT = torch.ones_like(call.labels_BT)
    mask_BT[1, -few:] = 0
    mask_BT[2, :many] = 0
    return measured(subject, name, replace(call, more={"mask": mask_BT}))


def packed(subject: Subject, name: str, one: LossCall) -> Measurement:
    """Two documents with restarted positions; the first label of the second does not count."""
    subject.can.takes_positions.require()
    middle, labels_BT = subject.inputs.length // 2, one.labels_BT.clone()
    labels_BT[:, middle] = IGNORED
    positions = [*range(middle), *range(subject.inputs.length - middle)]
    positions_BT = torch.tensor([positions], device=labels_BT.device)
    call = replace(one, labels_BT=labels_BT, more={"positions_BT": positions_BT})
    return measured(subject, name, call)


def accumulation(subject: Subject, one: LossCall) -> Iterator[Measurement]:
    """Two rows with unequal numbers of labels, one after the other: the sum of each is divided by
    the labels of both.
    """
    if not takes_items(subject):
        reason = f"the model takes no `{ITEMS}`: the trainer averages over the steps itself"
        yield skipped(ITEMS, reason)
        return
    row = subject.inputs.fresh(subject.inputs.length, salt=31)
    other = with_labels(subject, row, own=one.own, ignored=(range(len(row) // 2),))
    first, second = in_steps((one, other))
    try:
        got = ask(subject, first)
    except Unsupported as reason:
        yield not_measured(ITEMS, reason)
        return
    yield attempt(ITEMS, explained, subject, ITEMS, got)
    yield attempt(STEPS, _both, subject, got, second)


def _both(subject: Subject, got: LossAnswer, second: LossCall) -> Measurement:
    return accumulated(subject, STEPS, (got, ask(subject, second)))


def come_shifted(subject: Subject, name: str, one: LossCall) -> Measurement:
    """Labels that are shifted already, as training on parts of a sequence passes them, beside other
    labels of the usual kind.
    """
    if not one.own or not takes_items(subject):
        raise Unsupported("the loss takes one kind of labels")
    shifted = subject.inputs.fresh(subject.inputs.length, salt=37)
    call = replace(one, own=0, labels_BT=subject.passes.ids((shifted,)), usual_BT=one.labels_BT)
    got = ask(subject, call)
    if not got.fits:
        other = subject.passes.ids((subject.inputs.fresh(subject.inputs.length, salt=47),))
        if ask(subject, replace(call, labels_BT=other)).loss == got.loss:
            raise Unsupported("the loss reads only its usual labels")
        if ask(subject, replace(call, usual_BT=other)).loss != got.loss:
            raise Unsupported("the loss reads its usual labels beside those that come shifted")
    return explained(subject, name, got)


def chance(subject: Subject, name: str, own: int) -> Measurement:
    """The loss on random tokens: far below the logarithm of the vocabulary means that the model
    reads what it predicts.
    """
    row = subject.inputs.fresh(subject.inputs.length, salt=23)
    loss = ask(subject, with_labels(subject, row, own=own)).loss
    note = f"on random tokens, where {math.log(subject.facts.vocab):.3g} is chance"
    return Figure(name, loss, "nats", note=note)
