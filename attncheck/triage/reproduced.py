"""What was reported, run again in every precision: the evidence for rounding.

Axes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from attncheck.model.subject import Subject
from attncheck.triage import axes
from attncheck.triage.answer import Question
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import SEQUENCES, Material
from attncheck.triage.own_call import OwnCall, Seen
from attncheck.triage.precision import Ladder, ladder
from attncheck.triage.routes import route

HALF = ("bfloat16", "float16")
SYMPTOMS = ("batch", "cache", "padding", "implementation", "upgrade", "long")
"""Symptoms that rounding may look like."""
WIDE = 96
"""Tokens of the drawn sequences in which flipped tokens are searched for."""
PATTERNS = 4
"""Call patterns that are tried on them."""


@final
@dataclass(frozen=True)
class Source:
    """What can be run: the reporter's own call, else call patterns on drawn sequences."""

    subject: Subject
    call: OwnCall | None
    brief: Material
    patterns: Sequence[CallPattern]

    def own(self, view: Subject) -> list[Seen]:
        """The reporter's own call."""
        assert self.call is not None
        return [self.call.run(view)]

    def plain(self, view: Subject) -> list[Seen]:
        """Call patterns of the symptom on a few short sequences."""
        return [Seen(case) for _, case in axes.measured(view, self.brief, self.patterns)]

    def wide(self, view: Subject) -> list[Seen]:
        """A few call patterns on longer sequences: more tokens that may flip."""
        length = min(WIDE, self.subject.inputs.room)
        rows = tuple(self.subject.inputs.fresh(length, salt=71 + n) for n in range(SEQUENCES))
        drawn, patterns = Material(rows, own=False), self.patterns[:PATTERNS]
        return [Seen(case) for _, case in axes.measured(view, drawn, patterns)]


def _concerned(patterns: Sequence[CallPattern], symptom: str) -> Sequence[CallPattern]:
    """The call patterns of the symptom's own axes: others are no evidence for it."""
    own = route(symptom).axes
    return [each for each in patterns if {name for name, _ in each.axes} <= set(own)] or patterns


def ladder_of(
    source: Source, reported: str, question: Question, says: Callable[[str], None]
) -> Ladder:
    """The reporter's call in every precision. Where nothing is known of it, the symptom's call
    patterns; where no token flips in them, the same on more tokens.
    """
    asked = question.symptom in SYMPTOMS or question.difference > 0 or reported in HALF
    if source.call is None and not asked:
        return Ladder(reported)
    says("the same in every precision")
    if source.call is not None:
        return ladder(source.subject, source.own, reported)
    near = replace(source, patterns=_concerned(source.patterns, question.symptom))
    found = Ladder(reported)
    for run in (near.plain, near.wide, source.plain, source.wide):
        more = ladder(source.subject, run, reported)
        found = more if more.lines else found
        if found.reproduces(question.symptom, question.difference) or found.failing:
            break
    return found
