"""The loss is the cross entropy of labels shifted once.

What it checks
    The loss that the model returns for `labels` is the mean cross entropy of its own logits against the labels shifted by one:
    labels of -100 do not count, padding does not count, `num_items_in_batch` divides the sum. Across the border of packed
    documents a label of -100 takes the border out.

Why it matters
    Labels that are shifted twice train on the token after the next, labels that are not shifted train to copy: the loss goes
    down in both cases. A mean of means over accumulated batches weighs short batches too much.

How it measures
    Logits and loss come from one call, so that nothing but the loss is compared with a cross entropy in float64. Where it does
    not fit, the same labels with another shift are tried: the one that fits to rounding names the fault.

False alarms
    An encoder-decoder model takes labels that its decoder input is already shifted against: no shift is right there. Decoder
    heads of that family keep this habit; since users pass `labels=input_ids` to them, that is a `warn`. A loss that fits no
    shift of the labels on one plain row has terms of its own (several tokens ahead, balance of experts) and is skipped.

References
    Hugging Face transformers issues 47394 (Git: shifted twice), 10480 (BART decoders do not shift), 34191 (mean of means).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from attncheck.errors import Unsupported
from attncheck.finding import Evidence, Measurement, Ruling, Verdict, skipped
from attncheck.numerics.losses import IGNORED, cross_entropy
from attncheck.probe import Cost, attempt, judge_cases
from attncheck.subject.inputs import Tokens
from attncheck.subject.pictures import loss_with_picture
from attncheck.subject.subject import Subject

# Axes: B batch, T positions, V vocabulary.

ITEMS = "num_items_in_batch"
SHIFTS = {0: "labels that are not shifted", 1: "labels that are shifted once", 2: "labels that are shifted twice"}


@final
@dataclass(frozen=True, kw_only=True)
class Labels:
    """Asks for the loss and computes it again from the logits of the same call."""

    name: ClassVar[str] = "labels"
    title: ClassVar[str] = "the loss is the cross entropy of labels shifted once"
    cost: ClassVar[Cost] = "cheap"
    needs: ClassVar[tuple[str, ...]] = ("decodes",)
    controls: ClassVar[tuple[str, ...]] = ("label-shift",)

    padding: int = 3

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One row, ignored labels, a padded batch, a packed row, and a sum that is divided by the number of items."""
        tokens = subject.inputs.tokens
        ids_BT = subject.passes.ids(tokens)
        pictured = attempt("labels behind a picture", lambda: _pictured(subject, ids_BT))
        yield from [pictured] if pictured.judged else []
        first = attempt("labels of one row", lambda: _case(subject, "labels of one row", tokens, ids_BT))
        if first.judged and first.excess > 1.0 and not first.fault:
            yield skipped(first.name, f"the loss has terms of its own: it fits no shift of the labels ({first.note})")
            return
        yield first
        some_BT = ids_BT.clone()
        some_BT[:, [*range(subject.inputs.length // 3), -2]] = IGNORED
        yield attempt("labels of -100", lambda: _case(subject, "labels of -100", tokens, some_BT))
        yield attempt("padded batch", lambda: self._padded(subject))
        yield attempt("packed row", lambda: _packed(subject))
        yield attempt(ITEMS, lambda: _divided(subject, ids_BT))
        yield attempt("loss beside chance", lambda: _chance(subject))

    def judge(self, evidence: Evidence) -> Ruling:
        """The worst case decides."""
        return judge_cases(evidence)

    def _padded(self, subject: Subject) -> Measurement:
        if subject.can.mask_2d:
            raise Unsupported(subject.can.mask_2d)
        row = subject.inputs.row
        tokens = (row, row[: -self.padding] + (subject.inputs.pool[0],) * self.padding)
        ids_BT = subject.passes.ids(tokens)
        mask_BT = torch.ones_like(ids_BT)
        mask_BT[1, -self.padding :] = 0
        return _case(subject, "padded batch", tokens, ids_BT.masked_fill(mask_BT == 0, IGNORED), mask=mask_BT)


def _asked(subject: Subject, tokens: Tokens, labels_BT: Tensor, extra: dict[str, Any], **asked: Any) -> tuple[Tensor, float]:
    """(logits_BTV, loss) of one call."""
    with torch.no_grad():
        reply = subject.passes.call(tokens, use_cache=False, extra={"labels": labels_BT, **extra}, **asked)
    if getattr(reply.output, "loss", None) is None:
        raise Unsupported("the model computes no loss from `labels`")
    return reply.logits_BTV, float(reply.output.loss)


def _case(subject: Subject, name: str, tokens: Tokens, labels_BT: Tensor, items: int | None = None, **asked: Any) -> Measurement:
    extra = {ITEMS: torch.tensor(items, device=labels_BT.device)} if items else {}
    logits_BTV, loss = _asked(subject, tokens, labels_BT, extra, **asked)
    return _held(subject, name, logits_BTV, labels_BT, loss, items)


def _pictured(subject: Subject, labels_BT: Tensor) -> Measurement:
    logits_BTV, loss = loss_with_picture(subject, labels_BT)
    case = _held(subject, "labels behind a picture", logits_BTV, labels_BT, loss, None)
    if case.excess > 1.0 and not case.fault:
        raise Unsupported(f"the loss behind a picture fits no shift of the labels ({case.note})")
    return case


def _held(subject: Subject, name: str, logits_BTV: Tensor, labels_BT: Tensor, loss: float, items: int | None) -> Measurement:
    own = 0 if subject.door.fixed else 1  # an encoder-decoder model's decoder input is already shifted
    usual = cross_entropy(logits_BTV, labels_BT, own, items)
    apart = abs(loss - usual.value)
    fitting = _fitting(logits_BTV, labels_BT, loss, items, own) if not apart <= usual.budget else None
    unshifted = fitting == 0 and not subject.door.fixed
    return Measurement(
        name=name,
        broken=Verdict.WARN if unshifted else Verdict.FAIL,
        max_abs=apart,
        budget=usual.budget,
        budget_from="the same cross entropy summed in another order",
        scale=max(abs(usual.value), 1.0),
        nonfinite=int(not math.isfinite(loss)),
        positions=usual.labels,
        unit="losses",
        note=_explained(loss, usual.value, fitting, unshifted),
        fault="label-shift" if fitting in SHIFTS else "",
        fault_residual=0.0 if fitting in SHIFTS else None,
    )


def _fitting(logits_BTV: Tensor, labels_BT: Tensor, loss: float, items: int | None, own: int) -> int | None:
    losses = {shift: cross_entropy(logits_BTV, labels_BT, shift, items) for shift in SHIFTS if shift != own}
    return next((shift for shift, each in losses.items() if abs(loss - each.value) <= each.budget), None)


def _explained(loss: float, want: float, fitting: int | None, unshifted: bool) -> str:
    text = f"the model says {loss:.6g}, its logits {want:.6g}"
    if fitting is None:
        return text
    habit = ": the caller must shift them, and `labels=input_ids` trains to copy" if unshifted else ""
    return f"{text}; it is the loss of {SHIFTS[fitting]}{habit}"


def _packed(subject: Subject) -> Measurement:
    """Two documents with restarted positions; the first label of the second does not count."""
    if subject.can.takes_positions:
        raise Unsupported(subject.can.takes_positions)
    middle, length = subject.inputs.length // 2, subject.inputs.length
    labels_BT = subject.passes.ids(subject.inputs.tokens)
    labels_BT[:, middle] = IGNORED
    positions_BT = torch.tensor([[*range(middle), *range(length - middle)]], device=labels_BT.device)
    return _case(subject, "packed row", subject.inputs.tokens, labels_BT, positions_BT=positions_BT)


def _divided(subject: Subject, ids_BT: Tensor) -> Measurement:
    """The sum divided by a number of items that is not the number of labels."""
    items = 3 * ids_BT.numel()
    tokens, (_, plain) = subject.inputs.tokens, _asked(subject, subject.inputs.tokens, ids_BT, {})
    _, divided = _asked(subject, tokens, ids_BT, {ITEMS: torch.tensor(items, device=ids_BT.device)})
    if plain == divided:
        raise Unsupported(f"`{ITEMS}` changes nothing: the loss stays a mean over its own batch")
    return _case(subject, ITEMS, tokens, ids_BT, items)


def _chance(subject: Subject) -> Measurement:
    """The loss on fresh random tokens: far below the logarithm of the vocabulary means that the model sees what it predicts."""
    tokens = (subject.inputs.fresh(subject.inputs.length, salt=23),)
    loss = _asked(subject, tokens, subject.passes.ids(tokens), {})[1]
    note = f"on random tokens, where {math.log(subject.facts.vocab):.3g} is chance"
    return Measurement(name="loss beside chance", expect="figure", value=loss, unit="nats", positions=1, note=note)
