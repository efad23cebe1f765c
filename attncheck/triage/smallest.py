"""The smallest pattern that still fails: delta debugging over axes, then the shortest input and the
fewest layers.

Every search here is bounded by a number of forward passes; what is found when they are spent is
what is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, final

from attncheck.core.errors import CannotInject, Unsupported
from attncheck.core.finding import Finding, Verdict, verdict_of
from attncheck.diagnosis.recorded import spec_dict
from attncheck.diagnosis.repro import offered
from attncheck.judge.judge import held_to_promise
from attncheck.judge.layers import Attended, read_layers
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.triage import axes
from attncheck.triage.answer import Smallest
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material, depth, shallower, shorter

Item = TypeVar("Item")
Fails = Callable[[], bool]
SHORTEST = 2
Pair = tuple[ForwardSpec, ForwardSpec]


@final
@dataclass
class ForwardCount:
    """Counts forward passes of a subject against a limit."""

    subject: Subject
    limit: int
    start: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.subject.loaded.forwards

    @property
    def used(self) -> int:
        """Passes so far."""
        return self.subject.loaded.forwards - self.start

    @property
    def spent(self) -> bool:
        """Whether no more may run."""
        return self.used >= self.limit


def ddmin(
    items: Sequence[Item], fails: Callable[[Sequence[Item]], bool], spent: Callable[[], bool]
) -> list[Item]:
    """The items cut down until none of them can be left out: Zeller's delta debugging.
    `fails(items)` must hold.

    The result is 1-minimal unless `spent` says stop before it is.
    """
    left, parts = list(items), 2
    while len(left) > 1 and not spent():
        size = -(-len(left) // parts)
        pieces = [left[start : start + size] for start in range(0, len(left), size)]
        smaller = next(
            (kept for kept in _candidates(pieces, left) if not spent() and fails(kept)), None
        )
        if smaller is not None:
            parts = max(2, parts - 1 if len(smaller) > size else 2)
            left = smaller
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), parts * 2)
    return left


def _candidates(pieces: list[list[Item]], left: list[Item]) -> list[list[Item]]:
    """Each piece alone, then everything but each piece."""
    without = [
        [each for other in pieces if other is not piece for each in other] for piece in pieces
    ]
    return [each for each in [*pieces, *without] if 0 < len(each) < len(left)]


def least(low: int, high: int, fails: Callable[[int], bool], spent: Callable[[], bool]) -> int:
    """The least number in low..high that fails, by halving; `high` is known to fail."""
    while low < high and not spent():
        middle = (low + high) // 2
        if fails(middle):
            high = middle
        else:
            low = middle + 1
    return high


def of_pattern(
    subject: Subject, material: Material, pattern: CallPattern, limit: int
) -> tuple[CallPattern, Smallest]:
    """The smallest pattern, row and depth at which the axes still disagree with the trusted path."""
    count = ForwardCount(subject, limit)

    def broken(kept: Sequence[tuple[str, Any]]) -> bool:
        return _broken(subject, material, CallPattern.of(kept))

    small = CallPattern.of(ddmin(pattern.axes, broken, lambda: count.spent))
    tokens = least(
        SHORTEST,
        material.length,
        lambda n: _broken(subject, material.first(n), small),
        lambda: count.spent,
    )
    layers = _fewest(subject, lambda: _broken(subject, material.first(tokens), small), count)
    return small, Smallest(
        words=str(small), tokens=tokens, layers=layers, passes=count.used, spent=count.spent
    )


def _broken(subject: Subject, material: Material, pattern: CallPattern) -> bool:
    try:
        return axes.fails(axes.measure(subject, material, pattern))
    except (Unsupported, *REFUSALS):
        return False


def of_probe(subject: Subject, probe: Probe, words: str, limit: int) -> Smallest:
    """The shortest main row and the fewest layers at which a probe still finds a failing case."""
    count = ForwardCount(subject, limit)

    def broken(length: int) -> bool:
        return _finds(shorter(subject, length), probe)

    tokens = least(4, subject.inputs.length, broken, lambda: count.spent)
    short = shorter(subject, tokens)
    layers = _fewest(short, lambda: _finds(short, probe), count)
    return Smallest(words=words, tokens=tokens, layers=layers, passes=count.used, spent=count.spent)


def _finds(subject: Subject, probe: Probe) -> bool:
    """Whether a failing case comes up; measuring stops at it."""
    try:
        return any(verdict_of(case) is Verdict.FAIL for case in probe.measure(subject))
    except (Unsupported, *REFUSALS):
        return False


def _fewest(subject: Subject, broken: Fails, count: ForwardCount) -> int | None:
    """The fewest first layers that still fail; None where layers cannot be cut."""
    whole = depth(subject)
    if whole < 2:
        return whole or None

    def cut(layers: int) -> bool:
        try:
            with shallower(subject, layers):
                return broken()
        except (CannotInject, *REFUSALS):
            return False

    found = least(1, whole, cut, lambda: count.spent)
    return found if found < whole else whole


def kept(subject: Subject, spec: ForwardSpec) -> bool:
    """Whether at least one layer could be judged on this pass, and all that could keep their
    promise.
    """
    held: list[bool] = []

    def reader(layer: Attended) -> None:
        if layer.over(spec.length):
            held.append(held_to_promise(subject.text_config, subject.model, layer).holds)

    try:
        read_layers(subject, spec, reader)
    except (Unsupported, *REFUSALS):
        return False
    return bool(held) and all(held)


def reproduction(
    subject: Subject, finding: Finding, smallest: Pair | None, directory: Path
) -> tuple[str, str]:
    """(text of the script, why there is none): from the smallest passes, else from those of the
    failing case.
    """
    reason = ""
    for pair in (smallest, None):
        tried = finding if pair is None else replace(finding, replay=_replay(finding, pair))
        try:
            return offered(subject, tried, directory).read_text(encoding="utf-8"), ""
        except (Unsupported, OSError, *REFUSALS) as error:
            reason = reason or str(error)
    return "", reason


def _replay(finding: Finding, pair: Pair) -> dict[str, object]:
    got, want = (spec_dict(spec) for spec in pair)
    return {**finding.replay, "got": got, "want": want}
