"""A loss with the logits of the same call, as a case, and the wrong loss that it is.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.probing import (
    IGNORED,
    Cause,
    Comparison,
    Divergence,
    Loss,
    LossCall,
    Subject,
    Verdict,
    Weighting,
    caller_shifts,
    cross_entropy,
    home_of_loss,
    label_weighting,
    logits_and_loss,
    text_config,
)


@final
@dataclass(frozen=True, kw_only=True)
class LossAnswer:
    """A loss, the logits of the same call, and the right loss of those logits."""

    spec: LossCall
    logits_BTV: Tensor
    loss: float
    right: Loss

    @property
    def surplus(self) -> float:
        """How much the model's loss is above the right one."""
        return self.loss - self.right.value

    @property
    def fits(self) -> bool:
        """Whether rounding explains the difference."""
        return abs(self.surplus) <= self.right.budget

    @property
    def weighting(self) -> Weighting:
        """The right weighting of these labels."""
        return label_weighting.usual(self.spec.labels_BT, self.spec.own, self.spec.items)

    @property
    def values(self) -> str:
        """Both losses in words."""
        return f"the model says {self.loss:.6g}, its logits {self.right.value:.6g}"

    def logs(self) -> Tensor:
        """The logarithms of the probabilities in float64, (B, T, V)."""
        return self.logits_BTV.double().log_softmax(-1)

    def case(self, name: str) -> Comparison:
        """The model's loss against the right one."""
        divergence = Divergence(
            max_abs=abs(self.surplus),
            scale=max(abs(self.right.value), 1.0),
            nonfinite=int(not math.isfinite(self.loss)),
            positions=self.right.labels,
        )
        source = "the same cross entropy summed in another order"
        return Comparison(
            name, divergence, self.right.budget, source, unit="losses", note=self.values
        )


def ask(subject: Subject, spec: LossCall) -> LossAnswer:
    """Run one call with labels."""
    return answer(spec, *logits_and_loss(subject, spec))


def answer(spec: LossCall, logits_BTV: Tensor, loss: Tensor) -> LossAnswer:
    """The result of a call with the cross entropy of its own logits."""
    right = cross_entropy(logits_BTV, spec.labels_BT, spec.own, spec.items, loss.dtype)
    return LossAnswer(spec=spec, logits_BTV=logits_BTV, loss=float(loss), right=right)


def suspects(subject: Subject, spec: LossCall) -> Iterator[Weighting]:
    """The wrong losses that this call may have given."""
    pad = getattr(text_config(subject.config), "pad_token_id", None)
    fills = (0, pad) if isinstance(pad, int) and 0 < pad < subject.facts.vocab else (0,)
    return label_weighting.wrong(spec.labels_BT, spec.own, spec.items, fills, spec.more.get("mask"))


def nearest(subject: Subject, got: LossAnswer) -> Weighting | None:
    """The wrong loss whose value is nearest. In half precision several may be near, and the mildest
    is preferred.
    """
    logs_BTV, budget = got.logs(), got.right.budget
    values = ((each, each.value(logs_BTV)) for each in suspects(subject, got.spec))
    found = [
        (each.kind != "items", 0.0 if math.isnan(value) else abs(value - got.loss), each)
        for each, value in values
        if near(value, got.loss, budget * max(1.0, each.total))
    ]
    return min(found, key=lambda pair: pair[:2])[2] if found else None


def near(left: float, right: float, budget: float) -> bool:
    """Whether two losses agree; two that are NaN do."""
    return abs(left - right) <= budget or (math.isnan(left) and math.isnan(right))


def wrong_case(
    subject: Subject, case: Comparison, got: LossAnswer, found: Weighting | None, beside: str = ""
) -> Comparison:
    """The case with the wrong loss that it is, and the consequence."""
    if found is None:
        return _of_other_logits(subject, case, got)
    unshifted = found.kind == "shift" and found.shift == 0 and caller_shifts(subject)
    habit = ": the caller must shift them, and `labels=input_ids` trains to copy"
    fault = "label-shift" if found.kind == "shift" else "loss-weights"
    return replace(
        case,
        broken=Verdict.WARN if unshifted or found.kind == "items" else Verdict.FAIL,
        note=f"{got.values}; it is {found.words}{habit if unshifted else ''}{beside}",
        cause=Cause(fault, 0.0, module=home_of_loss(subject.model)),
    )


def _of_other_logits(subject: Subject, case: Comparison, got: LossAnswer) -> Comparison:
    """The case with the module whose output the loss is made of, where that is not what the model
    returns as its logits.
    """
    for name, inner_BTV in got.spec.inner_logits(subject):
        loss = cross_entropy(inner_BTV, got.spec.labels_BT, got.spec.own, got.spec.items)
        if near(loss.value, got.loss, loss.budget):
            words = f"it is that of what `{name}` returns, before the model makes its logits of it"
            return replace(
                case, note=f"{got.values}; {words}", cause=LossCall.of_other_logits(subject.model)
            )
    note = f"{got.values}; it is the cross entropy in no usual weighting of the labels"
    return replace(case, note=note, cause=Cause(module=home_of_loss(subject.model)))


def smoothed(logs_BTV: Tensor, right: Weighting, share: float) -> float:
    """The right loss with smoothed labels: a share of each goes to all tokens alike."""
    kept_BT = right.targets_BT != IGNORED
    spread = float(-(logs_BTV.mean(-1) * right.weights_BT)[kept_BT].sum())
    return (1.0 - share) * right.value(logs_BTV) + share * spread


def smoothing(loss: float, logs_BTV: Tensor, right: Weighting) -> float | None:
    """The share of label smoothing that gives this loss; None where none in 0..1 does."""
    plain = right.value(logs_BTV)
    width = smoothed(logs_BTV, right, 1.0) - plain
    share = (loss - plain) / width if width else 0.0
    return share if 0.0 < share < 1.0 else None


def smoothed_words(got: LossAnswer, other: LossAnswer, budget: float) -> str:
    """Words for a loss of smoothed labels, where the same share gives both losses."""
    share = smoothing(got.loss, got.logs(), got.weighting)
    if share is None:
        return ""
    error = budget * abs(other.surplus / got.surplus)
    fits = near(smoothed(other.logs(), other.weighting, share), other.loss, budget + error)
    return f"the loss of labels that are smoothed by {share:.3g}" if fits else ""


def scaled_words(got: LossAnswer, other: LossAnswer, budget: float) -> str:
    """Words for a multiple of the right loss, where the same factor gives both losses."""
    factor = got.loss / got.right.value if got.right.value else math.inf
    fits = near(factor * other.right.value, other.loss, budget * max(1.0, abs(factor)))
    return f"{factor:.4g} times the right one" if fits else ""
