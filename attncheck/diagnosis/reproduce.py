"""Which fault reproduces a failure: the predictions of hypotheses against the observed logits.

Axes: B batch, T query positions, S key positions, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Measurement
from attncheck.diagnosis.failure import (
    REFUSED,
    Failure,
    FailureSide,
    open_case,
    unmeasured,
)
from attncheck.diagnosis.stand_ins import plain_calls
from attncheck.distributed.ranks import agreed
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.registry import hypotheses

JOINED = 2
"""How many hypotheses are combined with each other one."""
DISTINGUISHING = 3
"""How many more failing cases are tried where several faults predict the same logits."""
FURTHER = 3
"""How many plain calls after those."""
UNPREDICTABLE = (Unsupported, RuntimeError, IndexError, ValueError)


@final
@dataclass(frozen=True)
class TriedHypothesis:
    """One hypothesis, the difference of its prediction from the observed logits, and how many
    first positions it predicts exactly.
    """

    hypothesis: Hypothesis
    residual: float
    agrees: int = 0


@final
@dataclass
class Search:
    """The hypotheses tried on one failure, until the time is up.

    `others` are more failing cases of the same probe; `known` are faults already found on this
    model, which are tried first. After `until` the search for runners-up ends once there is one.
    `equals` are faults that give the same logits as the one found, in every call that was tried.
    """

    failure: Failure
    others: list[Measurement]
    until: float
    known: tuple[str, ...] = ()
    tried: list[TriedHypothesis] = field(default_factory=list)
    found: TriedHypothesis | None = None
    equals: tuple[str, ...] = ()

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """The faults that were tried, in order."""
        return tuple(dict.fromkeys(each.hypothesis.fault for each in self.tried))

    @property
    def matches(self) -> list[TriedHypothesis]:
        """The hypotheses that reproduce every wrong side."""
        return [each for each in self.tried if each.residual <= self.failure.budget]

    @property
    def best_other(self) -> TriedHypothesis | None:
        """The nearest prediction of a fault that does not match."""
        named = {each.hypothesis.fault for each in self.matches}
        rest = (
            each
            for each in self.tried
            if each.hypothesis.fault not in named and math.isfinite(each.residual)
        )
        return min(rest, key=lambda each: each.residual, default=None)

    def run(self, layer: int | None) -> TriedHypothesis | None:
        """The fault that reproduces the failure: in all layers, in `layer` alone, or from it on."""
        wrong = self.failure.wrong
        if not wrong:
            return None
        guesses: list[Hypothesis] = []
        batches = itertools.chain(
            [self._everywhere(wrong[0], guesses)],
            _by_layer(guesses, layer, self.failure.subject.facts.layers),
        )
        for batch in batches:
            self._try(batch)
            if self.matches:
                self.found = self._distinguished()
                return self.found
        self._try(self._pairs(guesses))
        self.found = self.matches[0] if self.matches else None
        return self.found

    def among(self, groups: frozenset[str] | None) -> TriedHypothesis | None:
        """The fault of these groups (None for all) that reproduces the failure in all layers."""
        wrong = self.failure.wrong
        if not wrong:
            return None
        self._try(self._everywhere(wrong[0], [], groups))
        self.found = self._distinguished() if self.matches else None
        return self.found

    @property
    def near(self) -> list[TriedHypothesis]:
        """The hypotheses that predict more first positions exactly than a healthy model would."""
        wrong = self.failure.wrong
        trusted_BTV = wrong[0].trusted_BTV if wrong else None
        if trusted_BTV is None:
            return []
        usual = wrong[0].agrees(trusted_BTV)
        near = (each for each in self.tried if each.agrees > usual)
        return sorted(near, key=lambda each: -each.agrees)

    def _pairs(self, guesses: list[Hypothesis]) -> Iterator[Hypothesis]:
        """The nearest hypotheses combined with each other one: two faults that begin apart."""
        best = [each.hypothesis for each in self.near[:JOINED]]
        pairs = [first.joined(other) for first in best for other in guesses]
        return (pair for pair in pairs if pair is not None)

    def _everywhere(
        self, side: FailureSide, kept: list[Hypothesis], groups: frozenset[str] | None = None
    ) -> Iterator[Hypothesis]:
        """Every hypothesis, those of known faults first; each is kept.

        Without known faults none is built before its turn, since many are expensive to build.
        """
        guesses: Iterable[Hypothesis] = hypotheses(
            self.failure.trusted, side.spec, side.provenance, groups
        )
        if self.known:
            guesses = sorted(guesses, key=lambda guess: guess.fault not in self.known)
        for guess in guesses:
            kept.append(guess)
            yield guess

    def _try(self, guesses: Iterable[Hypothesis]) -> None:
        budget = self.failure.budget
        for guess in guesses:
            # processes of a sharded model must stop at the same hypothesis, or they wait forever
            known = bool(self.matches) and self.best_other is not None
            if known and agreed("time is up", time.perf_counter() > self.until):
                return
            tried = tried_on(guess, self.failure)
            if tried is None:
                continue
            if tried.residual <= budget and not self._is_possible(guess):
                continue
            self.tried.append(tried)

    def _is_possible(self, guess: Hypothesis) -> bool:
        """Whether the model can have a fault that matches, and the fault makes the match."""
        if guess.holds is not None and not guess.holds(self.failure.trusted):
            return False
        if guess.without is None:
            return True
        healthy = tried_on(replace(guess, predict=guess.without, change=None), self.failure)
        return healthy is None or healthy.residual > self.failure.budget

    def _distinguished(self) -> TriedHypothesis:
        """Of several matches, those that fail in other calls drop out; the first of the rest."""
        left = self.matches
        for case in itertools.chain(self.others[:DISTINGUISHING], self._further()):
            if len({each.hypothesis.fault for each in left}) == 1:
                break
            left = _surviving(left, self.failure, case) or left
        names = dict.fromkeys(each.hypothesis.fault for each in left)
        self.equals = tuple(name for name in names if name != left[0].hypothesis.fault)
        return left[0]

    def _further(self) -> Iterator[Measurement]:
        """Plain calls that the probe did not make: two of those that tell most faults apart."""
        specs = plain_calls(self.failure.subject)
        new = (spec for spec in specs if all(spec != side.spec for side in self.failure.sides))
        for spec in itertools.islice(new, FURTHER):
            yield unmeasured("a plain call", spec, spec)


def _by_layer(
    guesses: list[Hypothesis], layer: int | None, layers: int | None
) -> Iterator[list[Hypothesis]]:
    if layer is None or (layers or 0) < 2:
        return
    able = [guess for guess in guesses if guess.by_layer]
    yield [guess.within(range(layer, layer + 1), f"in layer {layer} only") for guess in able]
    if layer:
        rest = range(layer, layers or layer + 1)
        yield [guess.within(rest, f"from layer {layer} on") for guess in able]


def tried_on(guess: Hypothesis, failure: Failure) -> TriedHypothesis | None:
    """The hypothesis with its largest difference over the wrong sides; None where it predicts none.

    A prediction that does not leave the trusted path explains nothing, even within the budget.
    """
    worst, agrees = 0.0, None
    for side in failure.wrong:
        try:
            predicted_BTV = guess.logits(failure.trusted, side.spec)
        except UNPREDICTABLE:
            return None
        worst = max(worst, side.residual_of(predicted_BTV))
        agrees = side.agrees(predicted_BTV) if agrees is None else agrees
    return TriedHypothesis(guess, worst, agrees or 0)


def _surviving(
    left: list[TriedHypothesis], failure: Failure, case: Measurement
) -> list[TriedHypothesis]:
    try:
        other = open_case(failure.subject, case)
    except REFUSED:
        return left
    if not other.wrong:
        return left
    again = [(each, tried_on(each.hypothesis, other)) for each in left]
    return [each for each, tried in again if tried is not None and tried.residual <= other.budget]
