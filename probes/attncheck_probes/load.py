"""What loading noticed: weights that the checkpoint and the config do not agree on.

What it checks
    Every weight of the model is in the checkpoint with the shape that the config gives it, and the
    checkpoint holds no weight that the model has no place for.

Why it matters
    The library initializes a missing weight at random and ignores one too many, with a warning that
    nobody reads. The model runs, and what it writes is nonsense.

How it measures
    The lists that `from_pretrained` returns while it loads are counted. No forward is run. The
    probe runs on every target and is in the report only where it fails.

False alarms
    Weights that the library ties, or declares to be absent from checkpoints, are not counted.

References
    Hugging Face transformers, `from_pretrained(output_loading_info=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.probing import (
    Evidence,
    Measurement,
    Probe,
    Ruling,
    Subject,
    Verdict,
    describe,
    verdict_of,
)


@dataclass(frozen=True, kw_only=True)
class Load(Probe):
    """Reports what the loader noticed."""

    name = "load"
    title = "the checkpoint has the weights that the config asks for"

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """All notes of the loader, where one of them is a failure."""
        if any(verdict_of(note) is Verdict.FAIL for note in subject.loaded.load_notes):
            yield from subject.loaded.load_notes

    def judge(self, evidence: Evidence) -> Ruling:
        """Every failure is named."""
        broken = [case for case in evidence.measurements if verdict_of(case) is Verdict.FAIL]
        words = "; ".join(case.note or describe(case) for case in broken)
        return Ruling(verdict=Verdict.FAIL, summary=words)
