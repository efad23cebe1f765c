"""Checks that are no probes: finite values, and losses of accumulation steps.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_number
from attncheck.core.divergence import Divergence
from attncheck.core.errors import first_line
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import AtMost, Cause, Comparison, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.loss import ITEMS, LossCall, logits_and_loss, own_shift, takes_items
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import holes, max_abs
from attncheck.numerics.hooks import hooked
from attncheck.numerics.losses import IGNORED
from attncheck.triage.material import Material
from attncheck.triage.steps import Log

SEQUENCES = 4
ROUNDING = 64
ACCUMULATION_ADVICE = (
    "Sum the cross entropy and divide by `num_items_in_batch` where it is given, or set "
    "`accepts_loss_kwargs = False` on the model, so that the trainer averages over the steps."
)


@final
@dataclass
class Overflow:
    """The module outputs of some forwards: the largest finite value, and the first module whose
    output is not finite although its input is, with the number of such values.
    """

    dtype: torch.dtype
    largest: float = 0.0
    module: str = ""
    lost: int = 0

    def note(self, name: str, given: Any, output: Any) -> None:
        """Look at one module's output; after the first overflow nothing tells more."""
        if self.module:
            return
        for tensor in _floating(output):
            lost = int((~torch.isfinite(tensor)).sum())
            if lost and all(bool(torch.isfinite(each).all()) for each in _floating(given)):
                self.module, self.lost = name, lost
                return
            self.largest = max(self.largest, max_abs(tensor))

    def words(self, dtype: str) -> str:
        """What happened, in a sentence."""
        return (
            f"{self.lost} values that are not finite leave `{self.module}` in {dtype}; the largest "
            f"value before it is {self.largest:.3g}, {dtype} ends at "
            f"{torch.finfo(self.dtype).max:.3g}"
        )


def _floating(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _floating(each)


def finite_values(subject: Subject, material: Material, dtype: str, log: Log) -> Finding | None:
    """The first module that loses a finite value in a plain forward in the reporter's precision."""
    log.says("values that are not finite")
    try:
        with subject.at(dtype) as view:
            found = _overflow(view, material.rows)
    except REFUSED as reason:
        log.add("finite values", Verdict.SKIP, f"{dtype}: {first_line(reason)}")
        return None
    if found is None:
        words = f"every value of a plain forward is finite in {dtype}"
        log.add("finite values", Verdict.PASS, words)
        return None
    log.add("finite values", Verdict.FAIL, found.words(dtype))
    return _overflow_finding(found, dtype)


def _overflow(subject: Subject, rows: Tokens) -> Overflow | None:
    found, lost = Overflow(subject.dtype), 0

    def hook(name: str) -> Any:
        return lambda module, given, output: found.note(name, given, output)

    for row in dict.fromkeys(rows):
        named = ((name, module) for name, module in subject.model.named_modules() if name)
        with hooked(module.register_forward_hook(hook(name)) for name, module in named):
            subject.passes.replay(ForwardSpec((row,)))
        lost += holes(subject.logits(ForwardSpec((row,))))
    if lost and not found.module:
        found.module, found.lost = "the logits", lost
    return found if lost else None


def _overflow_finding(found: Overflow, dtype: str) -> Finding:
    case = AtMost(
        f"one plain forward in {dtype}",
        float(found.lost),
        "values that are not finite",
        nonfinite=found.lost,
        cause=Cause(module=found.module),
    )
    advice = (
        f"Run it in bfloat16 or float32, whose range is larger than that of {dtype}, or keep this "
        "module in float32."
    )
    return Finding(
        probe="finite-values",
        verdict=Verdict.FAIL,
        summary=found.words(dtype),
        cases=(case,),
        diagnosis=Diagnosis(fault="overflow", how="reproduced", residual=0.0, advice=advice),
        location=Location(module=found.module, layer=layer_number(found.module)),
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
