"""The two sides of a comparison: each a target under some settings, or a recorded file.

`attn=eager,dtype=bfloat16` on the command line changes the settings of one side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from attncheck.compare import weights
from attncheck.compare.divergence import RunComparison, Sameness, compare
from attncheck.compare.record import SUFFIX, Recording, record
from attncheck.compare.record import load as load_recording
from attncheck.compare.weights import WeightDifference
from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import DTYPES, Settings
from attncheck.model.subject import Subject
from attncheck.targets.load import load

TEXTS = ("attn", "dtype", "device", "revision", "cache")
NUMBERS = ("layers", "length", "seed", "tp")


@final
@dataclass(frozen=True)
class TwoSides:
    """The outcome of a comparison.

    With two models in memory, `how` says how weights differ, and `raised` is the same comparison in
    a higher precision, where the first was too coarse to tell.
    """

    comparison: RunComparison
    how: Sequence[WeightDifference] = ()
    raised: RunComparison | None = None

    @property
    def verdict(self) -> Sameness:
        """The verdict; a higher precision decides where the requested one could not."""
        if self.raised is None:
            return self.comparison.verdict
        return "different" if self.raised.verdict == "different" else "rounding"


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


def is_recording(text: str) -> bool:
    """Whether a side is a recorded file."""
    return text.endswith(SUFFIX)


def compare_sides(
    left: str, right: str, of_left: Settings, of_right: Settings, says: Callable[[str], None]
) -> TwoSides:
    """Record both sides on the same tokens and compare them.

    Beside a recorded side, the other takes that one's dtype unless it states its own.

    Raises:
        TargetError: a side cannot be loaded, or lacks a token of the other.
    """
    if is_recording(right) and not is_recording(left):
        return compare_sides(right, left, of_right, of_left, says)
    first, one = _recorded(left, of_left, None, says)
    if is_recording(left) and of_right.dtype == "auto":
        of_right = replace(of_right, dtype=first.dtype)
    second, other = _recorded(right, of_right, first, says)
    comparison = compare(first, second)
    if one is None or other is None:
        return TwoSides(comparison)
    how = weights.differing(one.model, other.model, comparison.weights)
    undecided = comparison.verdict == "undecided"
    return TwoSides(comparison, how, _raised(one, other, first) if undecided else None)


def _raised(one: Subject, other: Subject, like: Recording) -> RunComparison | None:
    """The same comparison in the highest precision that fits both: what differs there decides."""
    dtype = one.higher_dtype() or one.dtype_name
    try:
        with one.at(dtype) as left, other.at(dtype) as right:
            return compare(*(record(each, like.rows, like.pad) for each in (left, right)))
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # quantized weights refuse another precision: the verdict stays undecided


def _recorded(
    text: str, settings: Settings, like: Recording | None, says: Callable[[str], None]
) -> tuple[Recording, Subject | None]:
    if is_recording(text):
        return load_recording(Path(text)), None
    says(f"loading {text}")
    subject = load(text, settings)
    says(f"recording {text}")
    return (record(subject) if like is None else record(subject, like.rows, like.pad)), subject
