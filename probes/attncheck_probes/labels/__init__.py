"""The loss is the cross entropy of the labels that belong to each position.

What it checks
    The loss that the model returns for `labels` is the mean cross entropy of its own logits:
    against the labels shifted by one where it predicts the next token, unshifted behind a decoder
    input that is shifted already and in an encoder. Labels of
    -100 do not count, nor does padding on either side; `num_items_in_batch` divides the sum, so
    that accumulated steps add up to the loss of one batch. Labels leave the logits as they are, and
    training mode leaves the loss as it is.

Why it matters
    Labels that are shifted twice train on the token after the next, labels that are not shifted
    train to copy: the loss goes down in both cases. A mean of means over rows or accumulated steps
    weighs short ones too much.

How it measures
    Logits and loss come from one call, so that nothing but the loss is compared with a cross
    entropy in float64. Where it does not fit, other shifts, divisors, dropped and counted labels
    are tried: the one that fits to rounding is named. A difference that other labels do not change
    is a term of the model's own and does not count. Where terms depend on the labels, the
    derivative of the loss by the logits is compared. An encoder-decoder model that gets labels
    alone must not read a label before it has predicted it.

False alarms
    Decoders of an encoder-decoder family do not shift; since users pass `labels=input_ids` to them,
    that is a `warn`. So is a forward that takes `num_items_in_batch` and ignores it: right in one
    step, too high over several. A loss that does not come from the logits that are returned, or a
    model that generates and reads ahead, is skipped.

References
    Hugging Face transformers issues 47394 (Git: shifted twice), 10480 (BART decoders do not shift),
    34191 (mean of means), 47688 (`num_items_in_batch` ignored).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch

from attncheck.probing import (
    IGNORED,
    ITEMS,
    STEPS,
    Asked,
    Figure,
    ForwardSpec,
    Measurement,
    Probe,
    Row,
    Subject,
    Unsupported,
    Verdict,
    answered,
    attempt,
    own_shift,
    skipped,
    told_items,
    verdict_of,
)
from attncheck_probes.labels.labels_alone import labels_alone
from attncheck_probes.labels.loss_mismatch import (
    accumulated,
    answer,
    at_first_sight,
    held,
    in_steps,
    measured,
)
from attncheck_probes.labels.pictures import loss_with_picture

# Axes: B batch, T positions, V vocabulary.

HOLDS = (Verdict.PASS, Verdict.NOISE)


@final
@dataclass(frozen=True, kw_only=True)
class Labels(Probe):
    """Asks for the loss and computes it again from the logits of the same call."""

    name: ClassVar[str] = "labels"
    title: ClassVar[str] = (
        "the loss is the cross entropy of the labels that belong to each position"
    )
    controls: ClassVar[tuple[str, ...]] = ("label-shift", "loss-weights")

    padding: int = 3

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One row, ignored labels, a padded batch, a packed row, sums divided by the number of
        items, training mode.
        """
        row = subject.inputs.row
        one = _asked(subject, row, own=own_shift(subject))
        pictured = attempt("labels behind a picture", _pictured, subject, one)
        yield from [pictured] if pictured.judged else []
        judged = yield from _plain(subject, one)
        if not judged:
            return
        third = range(subject.inputs.length // 3)
        some = _asked(subject, row, row, own=one.own, ignored=((*third, -2), range(len(row))))
        yield attempt("labels of -100", measured, subject, "labels of -100", some)
        yield attempt("padded batch", self._padded, subject, one.own)
        yield attempt("packed row", _packed, subject, one)
        yield from _steps(subject, one)
        yield attempt(
            "training mode", measured, subject, "training mode", replace(one, trained=True)
        )
        yield from labels_alone(subject)
        yield attempt("loss beside chance", _chance, subject, one.own)

    def _padded(self, subject: Subject, own: int) -> Measurement:
        """A whole row, one padded on the right, and one padded further on the left."""
        subject.can.mask_2d.require()
        row, pad, few = (
            subject.inputs.row,
            (subject.inputs.pool[0],),
            min(self.padding, subject.inputs.length - 3),
        )
        many = min(2 * few, len(row) - 3)
        rows = (row, row[:-few] + pad * few, pad * many + row[many:])
        spec = _asked(
            subject, *rows, own=own, ignored=((), range(len(row) - few, len(row)), range(many + 1))
        )
        mask_BT = torch.ones_like(spec.labels_BT)
        mask_BT[1, -few:] = 0
        mask_BT[2, :many] = 0
        return measured(subject, "padded batch", replace(spec, more={"mask": mask_BT}))


def _asked(subject: Subject, *rows: Row, own: int, ignored: tuple[Any, ...] = ()) -> Asked:
    """Rows with themselves as labels, except where a row's are ignored; where nothing is shifted,
    other tokens.

    A model that predicts the tokens that it is given can be so sure of them that no loss is left to
    compare.
    """
    labels_BT = subject.passes.ids(
        rows if own else tuple(subject.inputs.other(row, salt=43) for row in rows)
    )
    for number, where in enumerate(ignored):
        labels_BT[number, list(where)] = IGNORED
    return Asked(tokens=rows, labels_BT=labels_BT, own=own)


def _plain(subject: Subject, one: Asked) -> Generator[Measurement, None, bool]:
    """The loss of one row, and its logits beside those without labels; whether the loss could be
    judged.
    """
    try:
        got = answer(one, *answered(subject, one))
    except Unsupported as reason:
        yield skipped("labels of one row", str(reason))
        return False
    loss = attempt("labels of one row", held, subject, "labels of one row", got)
    yield loss
    note = "the call has `labels` and is else the same"
    logits = subject.compare(
        "logits beside labels", got.logits_BTV, subject.logits(ForwardSpec(one.tokens)), note=note
    )
    if verdict_of(loss) in HOLDS or verdict_of(logits) not in HOLDS:
        yield logits  # a planted fault of the loss can break this case only where the loss held
    return loss.judged


def _pictured(subject: Subject, one: Asked) -> Measurement:
    got = answer(one, *loss_with_picture(subject, one.labels_BT))
    case = at_first_sight(subject, "labels behind a picture", got)
    if case is None:
        raise Unsupported("the loss behind a picture fits no shift of the labels")
    return case


def _packed(subject: Subject, one: Asked) -> Measurement:
    """Two documents with restarted positions; the first label of the second does not count."""
    subject.can.takes_positions.require()
    middle, length = subject.inputs.length // 2, subject.inputs.length
    labels_BT = one.labels_BT.clone()
    labels_BT[:, middle] = IGNORED
    positions_BT = torch.tensor(
        [[*range(middle), *range(length - middle)]], device=labels_BT.device
    )
    return measured(
        subject,
        "packed row",
        replace(one, labels_BT=labels_BT, more={"positions_BT": positions_BT}),
    )


def _steps(subject: Subject, one: Asked) -> Iterator[Measurement]:
    """Two rows of unequal labels, one after the other: the sum of each is divided by the labels of
    both.
    """
    if not told_items(subject):
        yield skipped(
            ITEMS,
            f"the model says that it takes no `{ITEMS}`: the trainer averages over the steps itself",
        )
        return
    row = subject.inputs.fresh(subject.inputs.length, salt=31)
    first, second = in_steps(
        (one, _asked(subject, row, own=one.own, ignored=(range(len(row) // 2),)))
    )
    try:
        got = answer(first, *answered(subject, first))
    except Unsupported as reason:
        yield skipped(ITEMS, str(reason))
        return
    yield attempt(ITEMS, held, subject, ITEMS, got)
    yield attempt(
        STEPS, accumulated, subject, STEPS, (got, answer(second, *answered(subject, second)))
    )


def _chance(subject: Subject, own: int) -> Measurement:
    """The loss on fresh random tokens: far below the logarithm of the vocabulary means that the
    model sees what it predicts.
    """
    loss = answered(
        subject, _asked(subject, subject.inputs.fresh(subject.inputs.length, salt=23), own=own)
    )[1]
    note = f"on random tokens, where {math.log(subject.facts.vocab):.3g} is chance"
    return Figure("loss beside chance", float(loss), "nats", note=note)
