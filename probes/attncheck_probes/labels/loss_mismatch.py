"""The model's loss against the cross entropy of its own logits: equal, or which wrong loss it is.

A difference that no label changes is a term of the model's own (the balance of its experts) and is
left out. Where terms do depend on the labels (several tokens ahead), the derivative of the loss
with respect to the logits is what training sees, and is compared instead.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.probing import (
    HEADROOM,
    IGNORED,
    Cause,
    Comparison,
    LossCall,
    Subject,
    Unsupported,
    beyond,
    home_of_loss,
    label_weighting,
    loss_gradient,
    max_abs,
    max_abs_diff,
    merged,
)
from attncheck_probes.labels.loss_answer import (
    LossAnswer,
    ask,
    near,
    nearest,
    scaled_words,
    smoothed_words,
    suspects,
    wrong_case,
)

SALT = 37


def measured(subject: Subject, name: str, spec: LossCall) -> Comparison:
    """One call with labels as a case."""
    return explained(subject, name, ask(subject, spec))


def explained(subject: Subject, name: str, got: LossAnswer) -> Comparison:
    """An answer as a case. Where it is no known loss, the model runs again with other labels."""
    found = at_first_sight(subject, name, got)
    if found is not None:
        return found
    others_BT = _other_labels(subject, got.spec.labels_BT)
    other = ask(subject, replace(got.spec, labels_BT=others_BT))
    return _with_own_term(subject, name, got, other) or _by_derivative(subject, name, got)


def at_first_sight(subject: Subject, name: str, got: LossAnswer) -> Comparison | None:
    """The case where the loss is the right one, or a known wrong one; None where it is neither."""
    case = got.case(name)
    if got.fits:
        return case
    if not math.isfinite(got.right.value):
        note = "the logits of positions that have a label are not finite"
        return replace(case, divergence=replace(case.divergence, nonfinite=1), note=note)
    found = nearest(subject, got)
    if found is not None or not math.isfinite(got.loss):
        return wrong_case(subject, case, got, found)
    return None


def _with_own_term(
    subject: Subject, name: str, got: LossAnswer, other: LossAnswer
) -> Comparison | None:
    """The case where other labels give the same difference, or that of the same wrong loss."""
    rounding = HEADROOM * torch.finfo(torch.float64).eps * abs(got.loss)
    budget, plain = got.right.budget + other.right.budget + rounding, got.case(name)
    change = abs(got.surplus - other.surplus)
    case = replace(plain, divergence=replace(plain.divergence, max_abs=change), budget=budget)
    if change <= budget:
        return replace(case, note=f"{case.note}, beside {got.surplus:.3g} that no label moves")
    words = smoothed_words(got, other, budget) or scaled_words(got, other, budget)
    if words:
        cause = Cause("loss-weights", 0.0, module=home_of_loss(subject.model))
        return replace(plain, note=f"{plain.note}; it is {words}", cause=cause)
    logs_BTV, others_BTV = got.logs(), other.logs()
    pairs = zip(suspects(subject, got.spec), suspects(subject, other.spec), strict=False)
    for here, there in pairs:
        predicted = here.value(logs_BTV) - there.value(others_BTV)
        allowed = budget * max(1.0, here.total)
        if here.words == there.words and near(predicted, got.loss - other.loss, allowed):
            return wrong_case(subject, case, got, here, " beside a term of the model's own")
    return None


def _by_derivative(subject: Subject, name: str, got: LossAnswer) -> Comparison:
    """The case by the derivative with respect to the logits, whatever else the loss adds up."""
    found_BTV = loss_gradient(subject, got.spec)
    if found_BTV is None:
        raise Unsupported(
            "the loss does not come from the logits that the model returns: "
            f"it fits no shift of the labels ({got.values})"
        )
    logs_BTV, right = got.logs(), got.weighting
    largest = float(right.weights_BT.max())
    budget = HEADROOM * torch.finfo(found_BTV.dtype).eps * max_abs(got.logits_BTV) * largest
    found_BTV = found_BTV.double()
    difference, case = max_abs_diff(found_BTV, right.derivative(logs_BTV)), got.case(name)
    case = replace(
        case,
        divergence=replace(case.divergence, max_abs=difference, scale=largest),
        budget=budget,
        budget_from="rounding of the derivative",
        unit="derivatives of the loss by the logits",
        note=f"{got.values}: terms of the model's own, which depend on the labels, "
        "make up the difference",
    )
    if difference <= budget:
        return case
    fitting = (
        each
        for each in suspects(subject, got.spec)
        if not beyond(found_BTV, each.derivative(logs_BTV), budget * max(1.0, each.total))
    )
    found = next(fitting, None)
    beside = " beside terms of the model's own" if found else ""
    return wrong_case(subject, case, got, found, beside)


def _other_labels(subject: Subject, labels_BT: Tensor) -> Tensor:
    """Other labels in the places of those that count."""
    rows = [
        subject.inputs.other(row, salt=SALT + number)
        for number, row in enumerate(labels_BT.tolist())
    ]
    return torch.where(labels_BT == IGNORED, labels_BT, torch.tensor(rows, device=labels_BT.device))


def in_steps(calls: tuple[LossCall, ...]) -> tuple[LossCall, ...]:
    """The same calls, each with the number of labels of all of them."""
    items = sum(
        label_weighting.count_of(label_weighting.shifted(each.labels_BT, each.own))
        for each in calls
    )
    return tuple(replace(each, items=items) for each in calls)


def accumulated(subject: Subject, name: str, got: tuple[LossAnswer, ...]) -> Comparison:
    """Calls that got the number of labels of all of them, as one case: the worst of them."""
    case = merged(name, [explained(subject, name, each) for each in got])
    losses, right = sum(each.loss for each in got), sum(each.right.value for each in got)
    total = f"they add up to {losses:.6g}, where one batch has {right:.6g}"
    return replace(case, note=f"{total}; in one of them {case.note}")
