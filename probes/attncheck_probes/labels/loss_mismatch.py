"""A loss beside the cross entropy of the logits that came with it: equal, or what it is instead.

A difference that no label moves is a term of the model's own (the balance of its experts) and is
left out. Where terms do depend on the labels (several tokens ahead), the derivative of the loss by
the logits shows what training sees.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.probing import (
    HEADROOM,
    IGNORED,
    Asked,
    Cause,
    Comparison,
    Divergence,
    Loss,
    Subject,
    Unsupported,
    Verdict,
    answered,
    beyond,
    caller_shifts,
    cross_entropy,
    max_abs,
    max_abs_diff,
    merged,
    slopes_of_loss,
    text_config,
)
from attncheck_probes.labels.label_weighting import (
    Weighing,
    moved,
    smoothed,
    smoothing,
    usual,
    wrong,
)

SALT = 37


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """A loss, the logits of the same call, and the right loss of those logits."""

    spec: Asked
    logits_BTV: Tensor
    loss: float
    right: Loss

    @property
    def apart(self) -> float:
        """How much the model's loss is above the right one."""
        return self.loss - self.right.value

    @property
    def fits(self) -> bool:
        """Whether rounding explains the difference."""
        return abs(self.apart) <= self.right.budget

    def logs(self) -> Tensor:
        """The logarithms of the probabilities in float64, (B, T, V)."""
        return self.logits_BTV.double().log_softmax(-1)


def answer(spec: Asked, logits_BTV: Tensor, loss: Tensor) -> Answer:
    """What a call gave, beside the cross entropy of its own logits."""
    right = cross_entropy(logits_BTV, spec.labels_BT, spec.own, spec.items, loss.dtype)
    return Answer(spec=spec, logits_BTV=logits_BTV, loss=float(loss), right=right)


def measured(subject: Subject, name: str, spec: Asked) -> Comparison:
    """One call with labels as a case.

    Raises:
        Unsupported: the model computes no loss, or one that does not come from the logits that it
        returns.
    """
    return held(subject, name, answer(spec, *answered(subject, spec)))


def held(subject: Subject, name: str, got: Answer) -> Comparison:
    """A loss that was asked for already, as a case; it is asked for again only where it fits
    nothing.

    Raises:
        Unsupported: the loss does not come from the logits that the model returns.
    """
    found = at_first_sight(subject, name, got)
    if found is not None:
        return found
    others_BT = _other_labels(subject, got.spec.labels_BT)
    changed = replace(got.spec, labels_BT=others_BT)
    other = answer(changed, *answered(subject, changed))
    return _beside_terms(subject, name, got, other) or _by_slopes(subject, name, got)


def at_first_sight(subject: Subject, name: str, got: Answer) -> Comparison | None:
    """The case where the loss is the right one, or one of the wrong ones; None where it is neither."""
    case = _case(name, got)
    if got.fits:
        return case
    if not math.isfinite(got.right.value):
        note = "the logits of positions that have a label are not finite"
        return replace(case, divergence=replace(case.divergence, nonfinite=1), note=note)
    logs_BTV, budget = got.logs(), got.right.budget
    found = _nearest(subject, got, logs_BTV, budget)
    if found is not None or not math.isfinite(got.loss):
        return _wrong(subject, case, got, found)
    return None


def _beside_terms(subject: Subject, name: str, got: Answer, other: Answer) -> Comparison | None:
    """The case where the difference is the same for other labels, or that of a wrong loss on both."""
    budget = (
        got.right.budget
        + other.right.budget
        + HEADROOM * torch.finfo(torch.float64).eps * abs(got.loss)
    )
    case = _case(name, got)
    divergence = replace(case.divergence, max_abs=abs(got.apart - other.apart))
    case = replace(case, divergence=divergence, budget=budget)
    if abs(got.apart - other.apart) <= budget:
        return replace(case, note=f"{case.note}, beside {got.apart:.3g} that no label moves")
    logs_BTV, others_BTV = got.logs(), other.logs()
    bent = _smoothed(got, other, budget) or _scaled(got, other, budget)
    if bent:
        return replace(
            _case(name, got),
            note=f"{case.note}; it is {bent}",
            cause=Cause("loss-weights", 0.0),
        )
    pairs = zip(_suspects(subject, got.spec), _suspects(subject, other.spec), strict=False)
    for here, there in pairs:
        moved = here.value(logs_BTV) - there.value(others_BTV)
        if here.words == there.words and _near(
            moved, got.loss - other.loss, budget * max(1.0, here.total)
        ):
            return _wrong(subject, case, got, here, " beside a term of the model's own")
    return None


def _smoothed(got: Answer, other: Answer, budget: float) -> str:
    """Words for a loss of smoothed labels, where the same share gives both losses."""
    right, rights = (
        usual(each.spec.labels_BT, each.spec.own, each.spec.items) for each in (got, other)
    )
    share = smoothing(got.loss, got.logs(), right)
    if share is None:
        return ""
    error = budget * abs(other.apart / got.apart)
    fits = _near(smoothed(other.logs(), rights, share), other.loss, budget + error)
    return f"the loss of labels that are smoothed by {share:.3g}" if fits else ""


def _scaled(got: Answer, other: Answer, budget: float) -> str:
    """Words for a multiple of the right loss, where the same factor gives both losses."""
    factor = got.loss / got.right.value if got.right.value else math.inf
    fits = _near(factor * other.right.value, other.loss, budget * max(1.0, abs(factor)))
    return f"{factor:.4g} times the right one" if fits else ""


def _by_slopes(subject: Subject, name: str, got: Answer) -> Comparison:
    """The case by what the loss does to the logits, whatever else is added up in it."""
    slopes_BTV = slopes_of_loss(subject, got.spec)
    if slopes_BTV is None:
        raise Unsupported(
            f"the loss does not come from the logits that the model returns: it fits no shift of the labels ({_said(got)})"
        )
    spec, logs_BTV = got.spec, got.logs()
    right = usual(spec.labels_BT, spec.own, spec.items)
    budget = (
        HEADROOM
        * torch.finfo(slopes_BTV.dtype).eps
        * max_abs(got.logits_BTV)
        * float(right.weights_BT.max())
    )
    apart = max_abs_diff(slopes_BTV.double(), right.slopes(logs_BTV))
    case = _case(name, got)
    case = replace(
        case,
        divergence=replace(case.divergence, max_abs=apart, scale=float(right.weights_BT.max())),
        budget=budget,
        budget_from="rounding of the derivative",
        unit="derivatives of the loss by the logits",
        note=f"{_said(got)}: terms of the model's own, which depend on the labels, make up the difference",
    )
    if apart <= budget:
        return case
    near = _named(
        subject,
        spec,
        lambda each: _same(slopes_BTV, each.slopes(logs_BTV), budget * max(1.0, each.total)),
    )
    return _wrong(subject, case, got, near, " beside terms of the model's own" if near else "")


def _suspects(subject: Subject, spec: Asked) -> Iterator[Weighing]:
    pad = getattr(text_config(subject.config), "pad_token_id", None)
    fills = (0, pad) if isinstance(pad, int) and 0 < pad < subject.facts.vocab else (0,)
    return wrong(spec.labels_BT, spec.own, spec.items, fills, spec.more.get("mask"))


def _named(subject: Subject, spec: Asked, fits: Callable[[Weighing], bool]) -> Weighing | None:
    return next((each for each in _suspects(subject, spec) if fits(each)), None)


def _nearest(subject: Subject, got: Answer, logs_BTV: Tensor, budget: float) -> Weighing | None:
    """The weighing whose value is nearest: in half precision more than one may be near, and the
    mildest is meant first.
    """
    values = [(each, each.value(logs_BTV)) for each in _suspects(subject, got.spec)]
    near = [
        (each, value)
        for each, value in values
        if _near(value, got.loss, budget * max(1.0, each.total))
    ]

    def order(pair: tuple[Weighing, float]) -> tuple[bool, float]:
        return pair[0].kind != "items", 0.0 if math.isnan(pair[1]) else abs(pair[1] - got.loss)

    return min(near, key=order)[0] if near else None


def _near(left: float, right: float, budget: float) -> bool:
    return abs(left - right) <= budget or (math.isnan(left) and math.isnan(right))


def _same(left_BTV: Tensor, right_BTV: Tensor, budget: float) -> bool:
    return not beyond(left_BTV.double(), right_BTV, budget)


def _other_labels(subject: Subject, labels_BT: Tensor) -> Tensor:
    """Other labels in the places of those that count."""
    rows = [
        subject.inputs.other(row, salt=SALT + number)
        for number, row in enumerate(labels_BT.tolist())
    ]
    return torch.where(labels_BT == IGNORED, labels_BT, torch.tensor(rows, device=labels_BT.device))


def _said(got: Answer) -> str:
    return f"the model says {got.loss:.6g}, its logits {got.right.value:.6g}"


def _case(name: str, got: Answer) -> Comparison:
    divergence = Divergence(
        max_abs=abs(got.apart),
        scale=max(abs(got.right.value), 1.0),
        nonfinite=int(not math.isfinite(got.loss)),
        positions=got.right.labels,
    )
    return Comparison(
        name,
        divergence,
        got.right.budget,
        "the same cross entropy summed in another order",
        unit="losses",
        note=_said(got),
    )


def _wrong(
    subject: Subject, case: Comparison, got: Answer, found: Weighing | None, beside: str = ""
) -> Comparison:
    """The same case with the wrong loss that it is, and what follows from it."""
    if found is None:
        return replace(
            case, note=f"{_said(got)}; it is the cross entropy in no usual weighing of the labels"
        )
    unshifted = found.kind == "shift" and found.shift == 0 and caller_shifts(subject)
    habit = (
        ": the caller must shift them, and `labels=input_ids` trains to copy" if unshifted else ""
    )
    return replace(
        case,
        broken=Verdict.WARN if unshifted or found.kind == "items" else Verdict.FAIL,
        note=f"{_said(got)}; it is {found.words}{habit}{beside}",
        cause=Cause("label-shift" if found.kind == "shift" else "loss-weights", 0.0),
    )


def in_steps(parts: tuple[Asked, ...]) -> tuple[Asked, ...]:
    """The same calls, each told the number of labels of all of them."""
    items = sum(int((moved(each.labels_BT, each.own) != IGNORED).sum()) for each in parts)
    return tuple(replace(each, items=items) for each in parts)


def accumulated(subject: Subject, name: str, got: tuple[Answer, ...]) -> Comparison:
    """Calls that were told the number of labels of all of them, as one case: the worst of them.

    Raises:
        Unsupported: the loss does not come from the logits that the model returns.
    """
    case = merged(name, [held(subject, name, each) for each in got])
    losses, right = sum(each.loss for each in got), sum(each.right.value for each in got)
    return replace(
        case,
        note=f"they add up to {losses:.6g}, where one batch has {right:.6g}; in one of them {case.note}",
    )
