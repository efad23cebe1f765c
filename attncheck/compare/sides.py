"""What stands on each side of a comparison: a target under some settings, or a recorded file.

`attn=eager,dtype=bfloat16` on the command line changes the settings of one side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from attncheck.compare import trace, weights
from attncheck.compare.divergence import Comparison, Sameness, compare
from attncheck.compare.record import Recording, record
from attncheck.compare.weights import WeightDifference
from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import DTYPES, Settings
from attncheck.model.subject import Subject
from attncheck.targets.load import load

CHANGEABLE: dict[str, Callable[[str], Any]] = {
    "attn": str,
    "dtype": str,
    "device": str,
    "revision": str,
    "layers": int,
    "length": int,
    "seed": int,
    "cache": str,
    "tp": int,
}


@final
@dataclass(frozen=True)
class TwoSides:
    """The outcome of a comparison. Where both sides are models in memory: how the weights differ,
    and, where the precision was too coarse to tell, the same comparison in a higher one.
    """

    comparison: Comparison
    how: Sequence[WeightDifference] = ()
    raised: Comparison | None = None

    @property
    def verdict(self) -> Sameness:
        """What the comparison comes to: the higher precision decides where the asked one could not."""
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
        if name not in CHANGEABLE:
            raise UsageError(unknown("setting", name, CHANGEABLE))
        found[name] = _value(name, value)
    if found.get("dtype", "auto") not in DTYPES:
        raise UsageError(unknown("dtype", found["dtype"], DTYPES))
    return replace(settings, **found)


def _value(name: str, value: str) -> Any:
    try:
        return CHANGEABLE[name](value)
    except ValueError as error:
        raise UsageError(f"`{name}={value}`: expected a whole number") from error


def is_trace(text: str) -> bool:
    """Whether a side is a recorded file."""
    return text.endswith(trace.SUFFIX)


def compare_sides(
    left: str, right: str, of_left: Settings, of_right: Settings, says: Callable[[str], None]
) -> TwoSides:
    """Record both sides on the same tokens and compare. A side without a dtype takes that of a
    recorded other side.

    Raises:
        TargetError: a side cannot be loaded, or lacks a token of the other.
    """
    if is_trace(right) and not is_trace(left):
        return compare_sides(right, left, of_right, of_left, says)
    first, one = _recorded(left, of_left, None, says)
    wanted = (
        of_right
        if of_right.dtype != "auto" or not is_trace(left)
        else replace(of_right, dtype=first.dtype)
    )
    second, other = _recorded(right, wanted, first, says)
    comparison = compare(first, second)
    if one is None or other is None:
        return TwoSides(comparison, [], None)
    how = weights.differing(one.model, other.model, comparison.weights)
    return TwoSides(
        comparison, how, _raised(one, other, first) if comparison.verdict == "undecided" else None
    )


def _raised(one: Subject, other: Subject, first: Recording) -> Comparison | None:
    """The same comparison in the highest precision that fits both: what is left of the difference
    there decides.
    """
    dtype = one.higher_dtype() or one.dtype_name
    try:
        with one.at(dtype) as left, other.at(dtype) as right:
            return compare(
                record(left, first.rows, first.pad), record(right, first.rows, first.pad)
            )
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # quantised weights refuse another precision: the verdict then stays undecided


def _recorded(
    text: str, settings: Settings, like: Recording | None, says: Callable[[str], None]
) -> tuple[Recording, Subject | None]:
    if is_trace(text):
        return trace.load(Path(text)), None
    says(f"loading {text}")
    subject = load(text, settings)
    says(f"recording {text}")
    return (record(subject) if like is None else record(subject, like.rows, like.pad)), subject
