"""What the observation of a failing forward says, and whether it is proven.

A proof is a reproduction: the parts that were measured, put on the trusted path, give the observed
logits to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import final

from attncheck.core.finding import Diagnosis, Location
from attncheck.diagnosis.failure import REFUSED, Failure
from attncheck.faults.registry import advice
from attncheck.observation.observe import Observation, observed
from attncheck.report.numbers import number

GROUPS = {
    "cells": ("masks", "positions", "cache", "scores"),
    "keys": ("cache", "positions", "generation", "scores"),
    "values": ("cache", "scores"),
    "queries": ("positions", "generation", "scores"),
    "scores": ("scores", "positions", "masks"),
}
"""The groups of faults that can change each thing."""


@final
@dataclass(frozen=True)
class Measured:
    """One observation and its difference from the observed logits."""

    observation: Observation
    residual: float
    budget: float

    @property
    def proven(self) -> bool:
        """Whether every part is explained and the parts give the observed logits."""
        seen = self.observation
        return bool(seen.parts) and not seen.opaque and self.residual <= self.budget

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
        if not self.proven:
            return f"{text}. This alone does not give the observed logits."
        proof = "Exactly this on a forward without a cache gives the observed logits to"
        return f"{text}. {proof} {number(self.residual)}."

    def with_source(self, place: Location | None) -> Location | None:
        """The location with the first token that its query reads or misses against the spec."""
        if place is None or place.query_position is None or place.source_position is not None:
            return place
        keys = [
            each.key
            for group in self.observation.groups
            for each in group.members
            if (each.what, each.layer, each.at) == ("cells", place.layer, place.query_position)
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


def measured(failure: Failure) -> Measured | None:
    """What the first wrong side shows; None where there is nothing to observe."""
    side = failure.wrong[0] if failure.wrong else None
    if side is None or side.trusted_BTV is None:
        return None
    run = partial(side.run, failure.subject)
    try:
        seen = observed(
            failure.trusted,
            side.spec,
            run,
            side.trusted_BTV,
            lambda logits_BTV: side.residual_of(logits_BTV) <= failure.budget,
        )
    except REFUSED:
        return None
    return Measured(seen, side.residual_of(seen.predicted_BTV), failure.budget)
