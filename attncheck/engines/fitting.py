"""Which fault gives the log-probabilities of an engine: every prediction against what it answered.

Axes: T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from attncheck.core.errors import Unsupported
from attncheck.engines.engine import Ids, LogProbs
from attncheck.engines.guesses.calls import call_guesses
from attncheck.engines.guesses.fields import field_guess, field_guesses, rope_bases
from attncheck.engines.guesses.guess import AND, EngineGuess
from attncheck.engines.rows import largest_gap, mean_kl
from attncheck.engines.twin import Predicts, Twin, row_like, rows_like

SPREAD = 6
"""Rows that are predicted one by one where a prediction holds for its last row only."""
LOWEST, HIGHEST, STEPS = 2.0, 8.0, 25
"""Powers of ten between which a rotary base is searched for, and how many are tried first."""
HALVINGS = 30
JOINED = 6
"""How many of the nearest guesses are joined with every other one."""
FAR = 3.0
"""The next fault must be this many times as far off as the one that is named."""
REFUSALS = (Unsupported, RuntimeError, ValueError, TypeError, IndexError, AttributeError)


@final
@dataclass(frozen=True)
class Answered:
    """What an engine answered: a row for each prompt that ends after `ends` of `ids`."""

    ids: Ids
    ends: tuple[int, ...]
    rows: tuple[LogProbs, ...]

    def gaps(self, predict: Predicts, by_prefix: bool = False) -> tuple[float, float]:
        """The largest difference from a prediction, and the mean KL."""
        if by_prefix:
            chosen = list(range(0, len(self.ends), -(-len(self.ends) // SPREAD)))
            want = [
                row_like(predict(self.ids[: self.ends[at]])[-1], self.rows[at]) for at in chosen
            ]
            got = [self.rows[at] for at in chosen]
        else:
            got, want = list(self.rows), rows_like(predict(self.ids), self.rows, self.ends)
        return largest_gap(got, want), mean_kl(got, want)


@final
@dataclass(frozen=True, kw_only=True)
class FittedGuess:
    """A guess with its distance from what the engine answered: largest difference and mean KL."""

    guess: EngineGuess
    residual: float
    kl: float


def fitted(answered: Answered, guesses: Iterable[EngineGuess]) -> list[FittedGuess]:
    """The guesses that can be predicted, the nearest first."""
    found = []
    for guess in guesses:
        try:
            residual, kl = answered.gaps(guess.made(), guess.by_prefix)
        except REFUSALS:
            continue
        if math.isfinite(residual):
            found.append(FittedGuess(guess=guess, residual=residual, kl=kl))
    return sorted(found, key=lambda each: each.residual)


def joined(
    answered: Answered, found: Sequence[FittedGuess], most: int = JOINED
) -> list[FittedGuess]:
    """The nearest guesses, each with every guess at the model that it predicts: an engine may have
    two faults at once. The nearest first.
    """
    pairs: list[FittedGuess] = []
    for first in sorted(found, key=lambda each: each.kl)[:most]:
        try:
            twin = first.guess.made()
        except REFUSALS:
            continue
        if isinstance(twin, Twin):
            others = (
                _pair(first.guess, second)
                for second in every_guess(twin)
                if second.fault not in first.guess.faults
            )
            pairs += fitted(answered, others)
    return sorted(pairs, key=lambda each: each.residual)


def _pair(first: EngineGuess, second: EngineGuess) -> EngineGuess:
    return replace(
        second,
        fault=AND.join(sorted({*first.faults, second.fault})),
        parameter=f"{first.parameter}, and {second.parameter or second.fault}",
        advice=first.advice,
    )


def every_guess(twin: Twin) -> Iterator[EngineGuess]:
    """All guesses for this model."""
    for source in (field_guesses, call_guesses):
        try:
            yield from source(twin)
        except REFUSALS:
            continue


def fitted_bases(twin: Twin, answered: Answered) -> list[FittedGuess]:
    """The rotary base that fits best, for each field that holds one: found by search, since an
    engine may have been given any.
    """
    found = []
    for name, value, put in rope_bases(twin):
        try:
            found.append(_best_base(twin, answered, name, value, put))
        except REFUSALS:
            continue
    return found


def _best_base(
    twin: Twin, answered: Answered, name: str, value: Any, put: Callable[[Any, Any], None]
) -> FittedGuess:
    made = partial(field_guess, twin, name, value, put=put)

    def distance(power: float) -> float:
        return answered.gaps(made(other=10.0**power).made())[1]

    step = (HIGHEST - LOWEST) / (STEPS - 1)
    start = min((LOWEST + step * index for index in range(STEPS)), key=distance)
    power = _narrowed(distance, start - step, start + step)
    base = 10.0**power
    plain = float(f"{base:.3g}")
    guesses = [made(other=each) for each in dict.fromkeys((plain, base))]
    return fitted(answered, guesses)[0]


def _narrowed(distance: Callable[[float], float], low: float, high: float) -> float:
    """The power of the least distance between two, by golden section."""
    share = (math.sqrt(5) - 1) / 2
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = distance(left), distance(right)
    for _ in range(HALVINGS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = distance(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = distance(right)
    return (low + high) / 2


def named(found: Sequence[FittedGuess], allowed: float, gap: float) -> FittedGuess | None:
    """The fault that explains a difference of `gap` from the right log-probabilities: within
    rounding (`allowed`) or far nearer than the truth, with the next other fault far off.
    """
    if not found:
        return None
    within = [each for each in found if each.residual <= allowed] or [found[0]]
    best = min(within, key=lambda each: (len(each.guess.faults), each.residual))
    other = next_best(found, best)
    clear = other is None or other.residual >= FAR * best.residual
    near = best.residual <= allowed and best.residual * FAR <= gap
    return best if near and clear else None


def next_best(found: Sequence[FittedGuess], best: FittedGuess) -> FittedGuess | None:
    """The nearest guess that is neither this fault nor this fault and another one."""
    faults = best.guess.faults
    others = (each for each in found if not faults <= each.guess.faults)
    return min(others, key=lambda each: each.residual, default=None)
