"""The loss is the cross entropy of the labels that belong to each position.

What it checks
    The loss that the model returns for `labels` is the mean cross entropy of its own logits:
    against the labels shifted by one where it predicts the next token, unshifted behind a decoder
    input that is shifted already and in an encoder. Labels of -100 do not count, nor does padding
    on either side; labels that come shifted (`shift_labels`) are not shifted again, where the model
    takes them; `num_items_in_batch` divides the sum, so that accumulated steps add up to the
    loss of one batch. Labels do not change the logits, and training mode does not change the loss.

Why it matters
    Labels that are shifted twice train on the token after the next, labels that are not shifted
    train to copy: the loss goes down in both cases. A mean of means over rows or accumulated steps
    weighs short ones too much.

How it measures
    Logits and loss come from one call, so that only the loss is compared with a cross entropy in
    float64. Where it does not fit, other shifts, divisors, dropped and counted labels are tried:
    the one that fits up to rounding is named. A difference that other labels do not change is a
    term of the model's own and does not count. Where terms depend on the labels, the derivative of
    the loss with respect to the logits is compared. An encoder-decoder model that gets labels alone
    must not read a label before it has predicted it.

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

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from attncheck.probing import (
    ForwardSpec,
    LossCall,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    asked,
    attempt,
    chosen,
    not_measured,
    own_shift,
    verdict_of,
)
from attncheck_probes.labels import calls
from attncheck_probes.labels.labels_alone import labels_alone
from attncheck_probes.labels.loss_answer import answer, ask
from attncheck_probes.labels.loss_mismatch import at_first_sight, explained, measured
from attncheck_probes.labels.pictures import loss_with_picture

# Axes: B batch, T positions, V vocabulary.

GIVEN = "labels that come shifted"
PASSED = (Verdict.PASS, Verdict.NOISE)


@dataclass(frozen=True, kw_only=True)
class Labels(Probe):
    """Runs calls with labels and computes the loss again from the logits of the same call."""

    name = "labels"
    title = "the loss is the cross entropy of the labels that belong to each position"
    controls = ("label-shift", "loss-weights")

    padding: int = 3

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One row, ignored labels, a padded batch, a packed row, sums divided by the number of
        items, training mode.
        """
        one = calls.with_labels(subject, subject.inputs.row, own=own_shift(subject))
        pictured = attempt("labels behind a picture", _pictured, subject, one)
        yield from [pictured] if pictured.judged else []
        judged = yield from _plain(subject, one)
        if not judged:
            return
        name = "labels of -100"
        yield attempt(name, measured, subject, name, calls.with_ignored(subject, one.own))
        name = "padded batch"
        yield attempt(name, calls.padded, subject, name, one.own, self.padding)
        yield attempt("packed row", calls.packed, subject, "packed row", one)
        given = attempt(GIVEN, calls.come_shifted, subject, GIVEN, one)
        yield from [given] if given.judged else []
        yield from calls.accumulation(subject, one)
        trained = replace(one, trained=True)
        yield attempt("training mode", measured, subject, "training mode", trained)
        yield from labels_alone(subject)
        yield attempt("loss beside chance", calls.chance, subject, "loss beside chance", one.own)


def _plain(subject: Subject, one: LossCall) -> Generator[Measurement, None, bool]:
    """The loss of one row, and its logits against those without labels; returns whether the loss
    could be judged.
    """
    name, beside = "labels of one row", "logits beside labels"
    if not chosen(name) or not asked((name, beside).__contains__):
        return True
    try:
        got = ask(subject, one)
    except Unsupported as reason:
        yield not_measured(name, reason)
        return False
    loss = attempt(name, explained, subject, name, got)
    yield loss
    want_BTV, note = subject.logits(ForwardSpec(one.tokens)), "the calls differ in `labels` only"
    logits = subject.compare(beside, got.logits_BTV, want_BTV, note=note)
    alone = not asked(name.__eq__)
    if alone or verdict_of(loss) in PASSED or verdict_of(logits) not in PASSED:
        yield logits  # a fault of the loss can break this case only where the loss passed
    return alone or loss.judged


def _pictured(subject: Subject, one: LossCall) -> Measurement:
    got = answer(one, *loss_with_picture(subject, one.labels_BT))
    case = at_first_sight(subject, "labels behind a picture", got)
    if case is None:
        raise Unsupported("the loss behind a picture fits no shift of the labels")
    return case
