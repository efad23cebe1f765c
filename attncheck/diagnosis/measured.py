"""What the observation of a failing forward says, and whether it is proven.

A proof is a reproduction: the parts that were measured, put on the trusted path, give the observed
logits to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import final

from torch import Tensor, nn

from attncheck.core.finding import Diagnosis, Location
from attncheck.diagnosis.failure import REFUSED, Failure, max_diff_at, on_a_cache
from attncheck.diagnosis.locate import source_of
from attncheck.faults.registry import advice
from attncheck.observation.observe import (
    Observation,
    observed,
    observed_alone,
    observed_between,
    observed_states,
    with_coarse_states,
)
from attncheck.observation.sequence import Sequence
from attncheck.observation.summary import AT_QUERIES
from attncheck.observation.words import HELD
from attncheck.report.numbers import number

GROUPS = {
    "cells": ("masks", "positions", "cache", "scores"),
    "keys": ("cache", "positions", "generation", "scores"),
    "values": ("cache", "scores"),
    "queries": ("positions", "generation", "scores"),
    "scores": ("scores", "positions", "masks"),
    "state": ("cache",),
}
"""The groups of faults that can change each thing."""
FORWARD = "Exactly this on a forward without a cache gives the observed logits"
FILLING = "Exactly this on a forward that fills a cache gives the observed logits"
ALONE = "Exactly this on each row alone and unpadded gives the observed logits"
TAKEN_OVER = (
    "Nothing else is wrong: with these taken over as they are, a forward without a cache gives the "
    "observed logits"
)
REPLACED = "With what another way to the same token leaves put there, the logits are right"
RESTORED = "With what each layer left in the cache put back, the logits are right"
NEWEST = "With the newest tokens in them, the logits are right"


@final
@dataclass(frozen=True)
class Measured:
    """One observation and its difference from the observed logits."""

    observation: Observation
    residual: float
    budget: float
    proof: str = FORWARD
    head: str = ""

    @property
    def proven(self) -> bool:
        """Whether every part is explained and the parts give the observed logits."""
        seen = self.observation
        return bool(seen.parts) and not seen.opaque and self.residual <= self.budget

    @property
    def taken_over(self) -> bool:
        """Whether the parts give the observed logits where some are not explained, and are taken
        over as they are: then nothing else is wrong. Logits taken over would say nothing.
        """
        seen = self.observation
        parts = bool(seen.parts) and all(part.what != "logits" for part in seen.parts)
        return parts and seen.opaque and self.residual <= self.budget

    @property
    def groups(self) -> frozenset[str] | None:
        """The groups of faults that may be meant; None where all may be."""
        if not self.proven or any(part.what not in GROUPS for part in self.observation.parts):
            return None
        found = (GROUPS[part.what] for part in self.observation.parts)
        return frozenset(name for names in found for name in names)

    @property
    def sentence(self) -> str:
        """What was measured, and what puts it to the proof."""
        text = self.observation.sentence
        if not text:
            return ""
        text = f"{text[0].upper()}{text[1:]}"
        if self.taken_over:
            return f"{text}. {TAKEN_OVER} to {number(self.residual)}."
        if not self.proven:
            return f"{text}. This alone does not give the observed logits."
        return f"{text}. {self.proof} to {number(self.residual)}."

    def place(self, model: nn.Module) -> Location | None:
        """The first module that has one of the parts."""
        members = [each for group in self.observation.groups for each in group.members]
        if not members or self.observation.parts[0].what in ("logits", "state"):
            return None
        first = min(members, key=lambda each: (each.layer, each.start, each.at))
        module = first.module or self.observation.modules.get(first.layer, "")
        return Location(
            module=module,
            layer=first.layer if first.layer >= 0 else None,
            query_position=first.at if first.what in AT_QUERIES and first.at >= 0 else None,
            source=source_of(model, module),
        )

    def with_source(self, place: Location | None) -> Location | None:
        """The location with the first token that its query reads or misses against the spec. Where
        no module differs and the logits do, that is the module which computes them.
        """
        if place is None and any(part.what == "logits" for part in self.observation.parts):
            return Location(module=self.head, note="between this module and the returned logits")
        if place is None or place.query_position is None or place.source_position is not None:
            return place
        keys = [
            each.key
            for group in self.observation.groups
            for each in group.members
            if (each.what, each.layer, each.at) == ("cells", place.layer, place.query_position)
            and each.key >= 0
        ]
        return replace(place, source_position=min(keys)) if keys else place

    def diagnosis(self) -> Diagnosis:
        """The diagnosis of a proven observation."""
        seen = self.observation
        fault = seen.faults[0] if seen.faults else ""
        others = f"Together with {', '.join(seen.faults[1:])}. " if seen.faults[1:] else ""
        return Diagnosis(
            fault=fault,
            how="measured",
            residual=self.residual,
            advice=f"{others}{self.sentence} {advice(fault or seen.family)}".strip(),
            sentence=self.sentence,
            family=seen.family,
            parts=seen.parts,
        )

    def added_to(self, found: Diagnosis) -> Diagnosis:
        """A diagnosis of another kind, with what was measured."""
        return replace(
            found,
            sentence=self.sentence,
            family=found.family or self.observation.family,
            parts=self.observation.parts,
        )


def measured_alone(failure: Failure, fault: str = "") -> Measured | None:
    """What the first sequence of a failing batch shows that differs from the same sequence alone,
    on the trusted path too; None where none is explained, or it holds what others put there.
    """
    side = failure.sides[0]
    if side.provenance is not None:
        return None
    try:
        rows = _rows(failure)
        proven = rows if rows is not None and rows.proven else None
        if proven is not None or fault == "rows-mixed":
            return proven
        found = (_alone(failure, row) for row in failure.failing_rows())
        return next(filter(None, found), None)
    except REFUSED:
        return None


def _rows(failure: Failure) -> Measured | None:
    """What the attention of all rows shows against each row alone."""
    side = failure.sides[0]
    seen = observed_alone(failure.trusted, side.spec, partial(side.run, failure.subject))
    if seen is None:
        return None
    return Measured(seen, side.residual_of(seen.predicted_BTV), failure.budget, ALONE)


def differs_alone(failure: Failure) -> bool:
    """Whether any sequence of the first side has other logits than the same sequence alone on the
    trusted path.
    """
    return any(
        failure.differ(*_pair(failure, Sequence.of(failure.sides[0].spec, row)))
        for row in range(len(failure.sides[0].spec.tokens))
    )


def _pair(failure: Failure, part: Sequence) -> tuple[Tensor, Tensor]:
    """The logits of one sequence of the first side: alone on the trusted path, and observed."""
    side = failure.sides[0]
    alone_BTV = failure.trusted.logits(part.alone(side.spec))
    return alone_BTV, part.states(side.observed_BTV)


def _alone(failure: Failure, row: int) -> Measured | None:
    side, trusted = failure.sides[0], failure.trusted
    part = Sequence.of(side.spec, row)
    right_BTV, wrong_BTV = _pair(failure, part)
    if not failure.differ(right_BTV, wrong_BTV):
        return None

    def agrees(logits_BTV: Tensor) -> bool:
        return max_diff_at(logits_BTV, wrong_BTV) <= failure.budget

    run = partial(side.run, failure.subject)
    seen = observed(trusted, side.spec, run, right_BTV, agrees, part)
    residual = max_diff_at(seen.predicted_BTV, wrong_BTV)
    found = Measured(seen, residual, failure.budget, ALONE)
    return found if found.proven else None


def measured(failure: Failure) -> Measured | None:
    """What the first wrong side shows, in its forwards and then between them; None where there is
    nothing to observe.
    """
    if not failure.wrong:
        return measured_alone(failure)
    found = _observed(failure)
    if found is not None and found.proven:
        return found
    for observing in (_states, _uncached, _between):
        other = observing(failure)
        if other is not None and other.proven:
            return other
    return found if found is None or not found.taken_over else _with_states(failure, found)


def _with_states(failure: Failure, found: Measured) -> Measured:
    side = failure.wrong[0]
    run = partial(side.run, failure.subject)
    seen = with_coarse_states(found.observation, failure.trusted, side.spec, run)
    return replace(found, observation=seen)


def _uncached(failure: Failure) -> Measured | None:
    """What the other side shows where the trusted path is right only as it fills a cache."""
    try:
        filling = on_a_cache(failure)
    except REFUSED:
        return None
    moved = [side.spec for side in filling.wrong] != [side.spec for side in failure.wrong]
    found = _observed(filling) if moved else None
    return None if found is None else replace(found, proof=FILLING)


def _observed(failure: Failure) -> Measured | None:
    side = failure.wrong[0] if failure.wrong else None
    if side is None or side.trusted_BTV is None:
        return None
    run = partial(side.run, failure.subject)

    def agrees(logits_BTV: Tensor) -> bool:
        return side.residual_of(logits_BTV) <= failure.budget

    try:
        seen = observed(failure.trusted, side.spec, run, side.trusted_BTV, agrees)
    except REFUSED:
        return None
    residual, head = side.residual_of(seen.predicted_BTV), _head(failure.subject.model)
    return Measured(seen, residual, failure.budget, head=head)


def _head(model: nn.Module) -> str:
    """The name of the module that computes the logits, or of the model's class."""
    found = getattr(model, "get_output_embeddings", lambda: None)()
    names = (name for name, module in model.named_modules() if module is found)
    return next(names, type(model).__name__)


def _states(failure: Failure) -> Measured | None:
    """Recurrent states that change between two calls of the wrong side; putting them back must give
    the trusted path's logits.
    """
    side = failure.wrong[0]
    if side.trusted_BTV is None:
        return None
    try:
        seen = observed_states(failure.trusted, side.spec, partial(side.again, failure.subject))
    except REFUSED:
        return None
    if seen is None:
        return None
    residual = max_diff_at(seen.predicted_BTV, side.kept(side.trusted_BTV), side.real)
    held = all(part.how in HELD for part in seen.parts)
    return Measured(seen, residual, failure.budget, NEWEST if held else RESTORED)


def _between(failure: Failure) -> Measured | None:
    """What calls leave that another way to the same token leaves otherwise."""
    spec, right_BTV = failure.wrong[0].spec, failure.wrong[0].trusted_BTV
    try:
        seen = observed_between(failure.trusted, spec, right_BTV, failure.budget)
    except REFUSED:
        return None
    return None if seen is None else Measured(*seen, failure.budget, REPLACED)
