"""Are all values finite, and how near do they come to the largest number of their precision: module
by module.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import layer_number
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.finding import (
    Diagnosis,
    Finding,
    Location,
    Measurement,
    Verdict,
    verdict_of,
)
from attncheck.core.ruling import describe
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.loss import ITEMS, Asked, answered, own_shift, told_items
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.hooks import hooked
from attncheck.numerics.losses import IGNORED
from attncheck.triage.material import Material
from attncheck.triage.steps import Log

ROWS = 4
ROUNDING = 64
ADVICE = (
    "Sum the cross entropy and divide by `num_items_in_batch` where it is given, or set `accepts_loss_kwargs = False` on the "
    "model, so that the trainer averages over the steps itself."
)


@final
@dataclass(frozen=True)
class Overflow:
    """The first module whose output is not finite although what it was given is, and the largest
    value before it.
    """

    module: str
    lost: int
    largest: float
    limit: float
    dtype: str

    @property
    def words(self) -> str:
        """What happened, in a sentence."""
        return (
            f"{self.lost} values that are not finite leave `{self.module}` in {self.dtype}; the largest value before it is "
            f"{self.largest:.3g}, {self.dtype} ends at {self.limit:.3g}"
        )


@final
@dataclass
class FiniteWatch:
    """What the modules of one forward put out: the largest finite value so far, and the first that
    is not finite.
    """

    largest: float = 0.0
    first: tuple[str, int] | None = None
    seen: set[str] = field(default_factory=set)

    def note(self, name: str, given: Any, output: Any) -> None:
        """Look at one module's output."""
        self.seen.add(name)
        for tensor in _floating(output):
            finite = torch.isfinite(tensor)
            if (
                not bool(finite.all())
                and self.first is None
                and all(bool(torch.isfinite(t).all()) for t in _floating(given))
            ):
                self.first = (name, int((~finite).sum()))
            if self.first is None and tensor.numel():
                self.largest = max(self.largest, max_abs(tensor))


def _floating(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _floating(each)


def overflow(subject: Subject, rows: Tokens) -> Overflow | None:
    """The first module that loses a finite value in one plain forward in the present precision, or
    None.
    """
    watch = FiniteWatch()
    lost = 0
    for row in dict.fromkeys(rows):
        with watching(subject.model, watch):
            subject.passes.replay(ForwardSpec((row,)))
        lost += int((~torch.isfinite(subject.logits(ForwardSpec((row,))))).sum())
    if not lost:
        return None
    name, count = watch.first or ("the logits", lost)
    return Overflow(name, count, watch.largest, torch.finfo(subject.dtype).max, subject.dtype_name)


@contextlib.contextmanager
def watching(model: nn.Module, watch: FiniteWatch) -> Iterator[None]:
    """While active, the output of every module is looked at."""

    def hook(name: str) -> Any:
        return lambda module, given, output: watch.note(name, given, output)

    named = ((name, module) for name, module in model.named_modules() if name)
    with hooked(module.register_forward_hook(hook(name)) for name, module in named):
        yield


def scanned(subject: Subject, material: Material, dtype: str, log: Log) -> Finding | None:
    """The scan for values that are not finite, in the reporter's precision."""
    log.says("values that are not finite")
    started = time.perf_counter()
    try:
        with subject.at(dtype) as view:
            found = overflow(view, material.rows)
    except (Unsupported, *REFUSALS) as reason:
        log.add("finite values", Verdict.SKIP, f"{dtype}: {first_line(reason)}", started)
        return None
    if found is None:
        log.add(
            "finite values",
            Verdict.PASS,
            f"every value of a plain forward is finite in {dtype}",
            started,
        )
        return None
    log.add("finite values", Verdict.FAIL, found.words, started)
    return _overflow(found)


def _overflow(found: Overflow) -> Finding:
    case = Measurement(
        name=f"one plain forward in {found.dtype}",
        expect="at-most",
        value=float(found.lost),
        limit=0.0,
        unit="values that are not finite",
        positions=1,
        nonfinite=found.lost,
        module=found.module,
    )
    advice = f"Run it in bfloat16 or float32, which reach further than {found.dtype}, or keep this module in float32."
    return Finding(
        probe="finite-values",
        verdict=Verdict.FAIL,
        summary=found.words,
        cases=(case,),
        diagnosis=Diagnosis(fault="overflow", how="reproduced", residual=0.0, advice=advice),
        location=Location(module=found.module, layer=layer_number(found.module)),
    )


def compiled(subject: Subject, material: Material, log: Log) -> Finding | None:
    """The compiled model against the plain one, in float32: compilers do not take hidden float32
    away.
    """
    log.says("compiling")
    started = time.perf_counter()
    row, name = material.rows[0], "the compiled model"
    try:
        with subject.at("float32") as single, torch.no_grad():
            want_BTV = single.logits(ForwardSpec((row,)))
            arguments = single.forward_adapter.arguments(single.passes.ids((row,)), use_cache=False)
            case = single.compare(name, torch.compile(single.model)(**arguments).logits, want_BTV)
    except Exception as error:  # compilers raise errors of their own kinds
        log.add(name, Verdict.SKIP, first_line(error), started)
        return None
    broken = verdict_of(case) is Verdict.FAIL and not case.in_doubt
    log.add(name, Verdict.FAIL if broken else Verdict.PASS, describe(case), started)
    return (
        Finding(probe="compiled", verdict=Verdict.FAIL, summary=describe(case), cases=(case,))
        if broken
        else None
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
