"""Which fault reproduces a failure: every prediction that fits, against the logits that were
observed.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Measurement
from attncheck.diagnosis.failure import Failure, FailureSide, open_case
from attncheck.distributed.ranks import agreed
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.registry import hypotheses

JOINED = 2
"""How many guesses are tried together with each other one."""
TELL_APART = 3
"""How many more failing cases are asked when several faults predict the same logits."""


@final
@dataclass(frozen=True)
class TriedHypothesis:
    """One hypothesis, how far its prediction is from what was observed, and how many first
    positions it gives exactly.
    """

    hypothesis: Hypothesis
    residual: float
    agrees: int = 0


@final
@dataclass
class Search:
    """What was tried on one failure, until the time is up.

    `others` are more failing cases of the same probe; `known` are faults already found on this
    model, tried first. After `until` no more runners-up are looked for once there is one.
    """

    failure: Failure
    others: list[Measurement]
    until: float
    known: tuple[str, ...] = ()
    tried: list[TriedHypothesis] = field(default_factory=list)
    found: TriedHypothesis | None = None

    @property
    def matches(self) -> list[TriedHypothesis]:
        """What reproduces every wrong side."""
        return [each for each in self.tried if each.residual <= self.failure.budget]

    @property
    def best_other(self) -> TriedHypothesis | None:
        """The nearest prediction of another fault than the one that is named."""
        named = {each.hypothesis.fault for each in self.matches}
        rest = [
            each
            for each in self.tried
            if each.hypothesis.fault not in named and math.isfinite(each.residual)
        ]
        return min(rest, key=lambda each: each.residual, default=None)

    def run(self, layer: int | None) -> TriedHypothesis | None:
        """The fault that reproduces the failure: in all layers, else in `layer` alone, else from it
        on.
        """
        wrong = self.failure.wrong
        if not wrong:
            return None
        guesses: list[Hypothesis] = []
        batches = itertools.chain(
            [self._plain(wrong[0], guesses)],
            _by_layer(guesses, layer, self.failure.subject.facts.layers),
        )
        for batch in batches:
            self._try(batch)
            if self.matches:
                self.found = self._told_apart()
                return self.found
        self._try(self._pairs(guesses))
        self.found = self.matches[0] if self.matches else None
        return self.found

    @property
    def near(self) -> list[TriedHypothesis]:
        """Where nothing matches: the guesses that give more positions exactly than a right model
        would, the most first.
        """
        wrong = self.failure.wrong
        trusted_BTV = wrong[0].trusted_BTV if wrong else None
        if trusted_BTV is None:
            return []
        usual = wrong[0].agrees(trusted_BTV)
        return sorted(
            (each for each in self.tried if each.agrees > usual), key=lambda each: -each.agrees
        )

    def _pairs(self, guesses: list[Hypothesis]) -> Iterator[Hypothesis]:
        """The guesses that give the most positions exactly, with each other one: two faults that
        begin at two places.
        """
        pairs = [
            first.hypothesis.joined(other) for first in self.near[:JOINED] for other in guesses
        ]
        return (pair for pair in pairs if pair is not None)

    def _plain(self, side: FailureSide, kept: list[Hypothesis]) -> Iterator[Hypothesis]:
        """Every guess, those known from this model first; each is kept. Where none is known, none
        is made before its turn.
        """
        guesses: Iterable[Hypothesis] = hypotheses(self.failure.trusted, side.spec, side.made)
        for guess in (
            sorted(guesses, key=lambda guess: guess.fault not in self.known)
            if self.known
            else guesses
        ):
            kept.append(guess)
            yield guess

    def _try(self, guesses: Iterable[Hypothesis]) -> None:
        for guess in guesses:
            known = bool(self.matches) and self.best_other is not None
            if known and agreed("time is up", time.perf_counter() > self.until):
                return
            tried = tried_on(guess, self.failure)
            if tried is None:
                continue
            residual = tried.residual
            if (
                residual <= self.failure.budget
                and guess.holds is not None
                and not guess.holds(self.failure.trusted)
            ):
                continue
            self.tried.append(tried)

    def _told_apart(self) -> TriedHypothesis:
        """Of several faults that predict the same here, those that fail on other cases fall out;
        then the plainest.
        """
        left = self.matches
        for case in self.others[:TELL_APART]:
            if len({each.hypothesis.fault for each in left}) == 1:
                break
            left = _surviving(left, self.failure, case) or left
        return left[0]


def _by_layer(
    guesses: list[Hypothesis], layer: int | None, layers: int | None
) -> Iterator[list[Hypothesis]]:
    if layer is None or (layers or 0) < 2:
        return
    able = [guess for guess in guesses if guess.by_layer]
    yield [guess.within(range(layer, layer + 1), f"in layer {layer} only") for guess in able]
    if layer:
        yield [
            guess.within(range(layer, layers or layer + 1), f"from layer {layer} on")
            for guess in able
        ]


def tried_on(guess: Hypothesis, failure: Failure) -> TriedHypothesis | None:
    """How far the prediction is from the wrong logits, the worst side; None where nothing can be
    predicted.

    A prediction that does not leave the trusted path explains nothing, even where it is within the
    budget.
    """
    worst, agrees = 0.0, None
    for side in failure.wrong:
        try:
            predicted_BTV = guess.logits(failure.trusted, side.spec)
        except (Unsupported, RuntimeError, IndexError, ValueError):
            return None
        worst = max(worst, side.apart(predicted_BTV))
        agrees = side.agrees(predicted_BTV) if agrees is None else agrees
    return TriedHypothesis(guess, worst, agrees or 0)


def _surviving(
    left: list[TriedHypothesis], failure: Failure, case: Measurement
) -> list[TriedHypothesis]:
    try:
        other = open_case(failure.subject, case)
    except Unsupported:
        return left
    if not other.wrong:
        return left
    again = [(each, tried_on(each.hypothesis, other)) for each in left]
    return [each for each, tried in again if tried is not None and tried.residual <= other.budget]
