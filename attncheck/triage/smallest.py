"""The smallest call that still fails, and a script that shows it.

Delta debugging over the axes, then the shortest input, then the fewest layers. A number of forwards
bounds every search; the answer is what was found when they are spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.failure import REFUSED
from attncheck.diagnosis.replay import spec_dict
from attncheck.diagnosis.repro import offered
from attncheck.judge.judge import judge_layer
from attncheck.judge.layer_calls import LayerCall, read_layers
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.triage import axes
from attncheck.triage.answer import Smallest
from attncheck.triage.call_pattern import CallPattern, pattern_of
from attncheck.triage.material import Material, depth, shallower, shorter
from attncheck.triage.steps import AXES

Item = TypeVar("Item")
Pair = tuple[ForwardSpec, ForwardSpec]
SHORTEST = 2
SHORTEST_OF_PROBES = 4
SEARCH = 60
"""Forwards that one search may take."""
NO_PATTERN = ("finite-values", "load", "against", "accumulation")
"""Findings whose case is one plain forward."""


@final
@dataclass
class ForwardCount:
    """Counts the forwards of a subject against a limit."""

    subject: Subject
    limit: int

    def __post_init__(self) -> None:
        self._start = self.subject.loaded.forwards

    @property
    def used(self) -> int:
        """Forwards so far."""
        return self.subject.loaded.forwards - self._start

    @property
    def spent(self) -> bool:
        """Whether the limit is reached."""
        return self.used >= self.limit


def ddmin(
    items: Sequence[Item], fails: Callable[[Sequence[Item]], bool], spent: Callable[[], bool]
) -> list[Item]:
    """The items cut down until none can be left out: Zeller's delta debugging.

    `fails(items)` must hold. The result is 1-minimal unless `spent` ends the search earlier.
    """
    left, parts = list(items), 2
    while len(left) > 1 and not spent():
        size = -(-len(left) // parts)
        chunks = [left[start : start + size] for start in range(0, len(left), size)]
        candidates = (kept for kept in _candidates(chunks, left) if not spent() and fails(kept))
        smaller = next(candidates, None)
        if smaller is not None:
            # leaving one chunk out keeps the chunk size; a single chunk starts anew
            parts = max(2, parts - 1 if len(smaller) > size else 2)
            left = smaller
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), parts * 2)
    return left


def _candidates(chunks: list[list[Item]], left: list[Item]) -> list[list[Item]]:
    """Each chunk alone, then everything but each chunk."""
    without = [[each for other in chunks if other is not one for each in other] for one in chunks]
    return [each for each in [*chunks, *without] if 0 < len(each) < len(left)]


def least(low: int, high: int, fails: Callable[[int], bool], spent: Callable[[], bool]) -> int:
    """The least number in low..high that fails, by bisection; `high` is known to fail."""
    # a fault that shows with few tokens or layers shows with more, so bisection may be trusted
    while low < high and not spent():
        middle = (low + high) // 2
        if fails(middle):
            high = middle
        else:
            low = middle + 1
    return high


def smallest_of(
    subject: Subject, material: Material, finding: Finding, reported: str
) -> tuple[Smallest, Pair | None]:
    """The smallest failing call pattern with its two forwards, else the probe's shortest input."""
    case = next((each for each in finding.cases if verdict_of(each) is Verdict.FAIL), None)
    if case is None or finding.probe in NO_PATTERN:
        return Smallest(words=f"one plain forward in {reported}"), None
    pattern = pattern_of(case.rerun.got) if case.rerun else CallPattern()
    if pattern.axes and axes.broken(subject, material, pattern):
        small, found = of_pattern(subject, material, pattern, SEARCH)
        short = material.first(found.tokens or material.length)
        rerun = axes.plain_case(subject, short, small).rerun
        return found, (rerun.got, rerun.want) if rerun else None
    if finding.probe == AXES:
        return Smallest(words=str(pattern)), None
    found = of_probe(subject, registry.load(finding.probe), _words(case, pattern), SEARCH)
    return found if pattern.axes else replace(found, right=_right(subject, material)), None


def _words(case: Measurement, pattern: CallPattern) -> str:
    if not case.rerun:
        return case.name
    return f"{pattern} ({case.name})" if pattern.axes else str(pattern)


def of_pattern(
    subject: Subject, material: Material, pattern: CallPattern, limit: int
) -> tuple[CallPattern, Smallest]:
    """The fewest axes, tokens and layers at which a call pattern still fails."""
    count = ForwardCount(subject, limit)

    def fails(kept: Sequence[tuple[str, Any]]) -> bool:
        return axes.broken(subject, material, CallPattern.of(kept))

    def fails_with(tokens: int) -> bool:
        return axes.broken(subject, material.first(tokens), small)

    small = CallPattern.of(ddmin(pattern.axes, fails, lambda: count.spent))
    tokens = least(SHORTEST, material.length, fails_with, lambda: count.spent)
    return small, _smallest(subject, str(small), tokens, lambda: fails_with(tokens), count)


def of_probe(subject: Subject, probe: Probe, words: str, limit: int) -> Smallest:
    """The shortest main sequence and the fewest layers at which a probe has a failing case."""
    count = ForwardCount(subject, limit)
    tokens = least(
        SHORTEST_OF_PROBES,
        subject.inputs.length,
        lambda length: _finds(shorter(subject, length), probe),
        lambda: count.spent,
    )
    short = shorter(subject, tokens)
    return _smallest(short, words, tokens, lambda: _finds(short, probe), count)


def _finds(subject: Subject, probe: Probe) -> bool:
    """Whether a case fails; measuring stops at the first."""
    try:
        return any(verdict_of(case) is Verdict.FAIL for case in probe.measure(subject))
    except REFUSED:
        return False


def _smallest(
    subject: Subject, words: str, tokens: int, broken: Callable[[], bool], count: ForwardCount
) -> Smallest:
    """With the fewest first layers that still fail; None where layers cannot be cut."""
    whole = depth(subject)

    def cut(layers: int) -> bool:
        try:
            with shallower(subject, layers):
                return broken()
        except REFUSED:
            return False

    layers = least(1, whole, cut, lambda: count.spent) if whole > 1 else whole
    return Smallest(
        words=words, tokens=tokens, layers=layers or None, passes=count.used, spent=count.spent
    )


def _right(subject: Subject, material: Material) -> tuple[str, ...]:
    """Where the plain forward fails: the call patterns that give other logits and are right."""
    offered = axes.values(subject)
    near = {axis: offered[axis] for axis in offered if axis in ("cache", "attn", "mask")}
    patterns = [
        pattern
        for pattern in axes.alone(near, ())
        if pattern.cache in ("", "on") and axes.broken(subject, material, pattern)
    ]
    specs = {str(each): axes.spec_of(subject, material, each)[0] for each in patterns}
    return tuple(words for words, spec in specs.items() if _is_right(subject, spec))


def _is_right(subject: Subject, spec: ForwardSpec) -> bool:
    """Whether every layer that can be judged in this forward, and at least one, computes what the
    config says.
    """
    held: list[bool] = []

    def reader(layer: LayerCall) -> None:
        if layer.over(spec.length):
            held.append(judge_layer(subject.text_config, subject.model, layer).passed)

    try:
        read_layers(subject, spec, reader)
    except REFUSED:
        return False
    return bool(held) and all(held)


def reproduction(
    subject: Subject, finding: Finding, smallest: Pair | None, directory: Path
) -> tuple[str, str]:
    """(script, why there is none): from the smallest forwards, else those of the failing case."""
    reason = ""
    for pair in (smallest, None):
        tried = finding
        if pair is not None:
            got, want = (spec_dict(spec) for spec in pair)
            tried = replace(finding, replay={**finding.replay, "got": got, "want": want})
        try:
            return offered(subject, tried, directory).read_text(encoding="utf-8"), ""
        except (OSError, *REFUSED) as error:
            reason = reason or str(error)
    return "", reason
