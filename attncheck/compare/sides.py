"""The two sides of a comparison: each a target under some settings.

`attn=eager,dtype=bfloat16` on the command line changes the settings of one side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from attncheck.compare import weights
from attncheck.compare.calls import Call, more_calls, shared_rows
from attncheck.compare.divergence import (
    RunComparison,
    Sameness,
    compare,
    unless_finer,
    with_rounding,
)
from attncheck.compare.further import fault_of, further_calls
from attncheck.compare.naming import Explanation
from attncheck.compare.operators import explain
from attncheck.compare.own_faults import differing_calls, own_faults
from attncheck.compare.record import record
from attncheck.compare.state_dicts import weights_first
from attncheck.compare.weights import WeightDifference
from attncheck.core.errors import AttncheckError, Unsupported, UsageError, unknown
from attncheck.core.finding import Control
from attncheck.core.settings import DTYPES, Settings
from attncheck.faults import registry
from attncheck.golden.answer import GateAnswer
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.padding import pad_id
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs
from attncheck.targets.load import load

TEXTS = ("attn", "dtype", "device", "revision", "cache")
NUMBERS = ("layers", "length", "seed", "tp")
CONTROLS = ("causal-mask-missing", "softmax-scale")


@final
@dataclass(frozen=True)
class TwoSides:
    """The outcome of a comparison.

    `how` says how weights differ, and `raised` is the same comparison in
    a higher precision, where the first was too coarse to tell. `explanation` names what differs,
    and `control` says whether the same comparison notices an injected fault.
    `state` are the lines on weights of files, and `further` what became of generate(), compiled
    code and lower precisions, which are asked where all forwards agree. `alignment` says which
    module of the other side holds each value of the reference.
    """

    comparison: RunComparison
    how: Sequence[WeightDifference] = ()
    raised: RunComparison | None = None
    explanation: Explanation | None = None
    control: Control | None = None
    state: tuple[str, ...] = ()
    further: GateAnswer | None = None
    alignment: tuple[tuple[str, str], ...] = ()

    @property
    def verdict(self) -> Sameness:
        """The verdict; a higher precision decides where the requested one could not."""
        if self.further is not None and self.further.word == "DIFFERENT":
            return "different"
        if self.raised is None:
            return self.comparison.verdict
        return "different" if self.raised.verdict == "different" else "rounding"


def _silent(text: str) -> None:
    """Tells nobody."""


def changed(settings: Settings, texts: Sequence[str]) -> Settings:
    """Settings with `name=value` pairs put in.

    Raises:
        UsageError: no such setting, or a value of another kind.
    """
    pairs = [pair.strip() for text in texts for pair in text.split(",") if pair.strip()]
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"`{pair}`: expected NAME=VALUE, for instance attn=eager")
        if name not in (*TEXTS, *NUMBERS):
            raise UsageError(unknown("setting", name, (*TEXTS, *NUMBERS)))
        try:
            found[name] = int(value) if name in NUMBERS else value
        except ValueError as error:
            raise UsageError(f"`{pair}`: expected a whole number") from error
    if found.get("dtype", "auto") not in DTYPES:
        raise UsageError(unknown("dtype", found["dtype"], DTYPES))
    return replace(settings, **found)


def compare_sides(
    left: str,
    right: str,
    of_left: Settings,
    of_right: Settings,
    says: Callable[[str], None],
    quick: bool = False,
    files: tuple[Path | None, Path | None] = (None, None),
    aligned: bool = False,
) -> TwoSides:
    """Record both sides on the same tokens, compare them, and explain what differs. A side whose
    weights are in one of `files` gets them first.

    Raises:
        TargetError: a side cannot be loaded, or lacks a token of the other.
    """
    one, other = _loaded(left, of_left, says), _loaded(right, of_right, says)
    lines = weights_first((one.model, other.model), files) if any(files) else ()
    return replace(compare_subjects(one, other, says, quick, aligned), state=tuple(lines))


def _loaded(text: str, settings: Settings, says: Callable[[str], None]) -> Subject:
    says(f"loading {text}")
    return load(text, settings)


def compare_subjects(
    one: Subject,
    other: Subject,
    says: Callable[[str], None] = _silent,
    quick: bool = False,
    aligned: bool = False,
) -> TwoSides:
    """Compare two models in memory, and explain what differs; `aligned` asks for the modules that
    hold the same values even where nothing does.

    Raises:
        TargetError: the vocabularies have too little in common.
    """
    one.forward_adapter.share_with(other.forward_adapter)
    rows, pad = shared_rows(one, other), pad_id(one)
    more = () if quick else tuple(more_calls(one, other, rows, pad))
    says(f"comparing {one.name} with {other.name}")
    found = [record(each, rows, pad, more) for each in (one, other)]
    comparison = compare(*found)
    how = weights.differing(one.model, other.model, comparison.weights)
    raised = None
    if comparison.verdict != "identical" and not in_float64(one, other):
        doubted = more if comparison.verdict != "rounding" else ()
        raised = _raised(one, other, rows, pad, doubted)
    explanation = None
    if (raised or comparison).verdict == "different" and not (quick and how):
        says("looking for what differs")
        explanation = explain_sides(one, other, rows)
    shown = explain_sides(one, other, rows) if aligned and explanation is None else explanation
    alignment = shown.alignment if aligned and shown is not None else ()
    if explanation is not None and explanation.rounding:
        comparison = with_rounding(comparison)
        raised = raised and with_rounding(raised)
    elif explanation is not None and not explanation.faults and raised is not None:
        raised = unless_finer(comparison, raised)
    ways = differing_calls(raised or comparison)
    if ways and not quick:
        says("looking for what differs in these calls alone")
        explanation = replace(explanation or Explanation(), faults=own_faults(one, other, ways))
    control = further = None
    if (raised or comparison).verdict in ("identical", "rounding"):
        control = seen_by_control(one, other, rows)
        says("comparing generate(), compiled code and lower precisions")
        further = None if quick else further_calls(one, other)
    if further is not None and further.word == "DIFFERENT":
        named = own_faults(one, other, [w.call.way for w in further.calls if w.held == "different"])
        explanation = Explanation(faults=(fault_of(further), *named))
    return TwoSides(
        comparison, how, raised, explanation, control, further=further, alignment=alignment
    )


def in_float64(*subjects: Subject) -> bool:
    """Whether all sides compute in the highest precision already."""
    return all(each.dtype_name == "float64" for each in subjects)


def _raised(
    one: Subject, other: Subject, rows: Tokens, pad: int, more: Sequence[Call]
) -> RunComparison | None:
    """The same comparison in the highest precision that fits both: what differs there decides."""
    try:
        with one.at("float64") as left, other.at("float64") as right:
            return compare(*(record(each, rows, pad, more) for each in (left, right)))
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # quantized weights refuse another precision: the verdict stays undecided


def explain_sides(one: Subject, other: Subject, rows: Tokens) -> Explanation:
    """What differs between two models, the library's model taken as the reference, else the first
    one.
    """
    length = min(map(len, rows))
    square = tuple(row[:length] for row in rows)
    swapped = is_of_the_library(other) and not is_of_the_library(one)
    first, second = (other, one) if swapped else (one, other)
    found = explain(first, second, square)
    if found.unreadable and not swapped:
        again = explain(second, first, square)
        if not again.unreadable:
            return replace(again, swapped=True)
    return replace(found, swapped=swapped)


def is_of_the_library(subject: Subject) -> bool:
    """Whether transformers itself defines the model's class."""
    return type(subject.model).__module__.partition(".")[0] == "transformers"


def seen_by_control(one: Subject, other: Subject, rows: Tokens) -> Control:
    """Whether the comparison notices a fault that is injected into one side: one of attention where
    the model has a place for it, else another token in the middle of the row.
    """
    spec = ForwardSpec(rows[:1])
    want_BTV, budget = other.logits(spec), one.budget.value + other.budget.value
    for name in CONTROLS:
        try:
            with registry.fault(name).injected(one):
                got_BTV = one.logits(spec)
        except (AttncheckError, Unsupported, *REFUSALS):
            continue
        amount = (
            max_abs(got_BTV.double() - want_BTV.to(got_BTV.device).double())
            if got_BTV.shape == want_BTV.shape
            else 0.0
        )
        return Control(fault=name, detected=not amount <= budget, max_abs=amount)
    row = one.inputs.other(rows[0], len(rows[0]) // 2, len(rows[0]) // 2 + 1)
    got_BTV = one.logits(ForwardSpec((row,)))
    both = min(got_BTV.shape[-1], want_BTV.shape[-1])
    amount = max_abs(got_BTV[..., :both].double() - want_BTV[..., :both].double())
    return Control(fault="another-token", detected=not amount <= budget, max_abs=amount)
