"""What is wrong with the weights before any attention runs: lost numbers, and a checkpoint and a
config that do not agree.

What it checks
    Every weight of the model is in the checkpoint with the shape that the config gives it, and the
    checkpoint holds no weight that the model has no place for. No weight is NaN or infinite, and
    neither is what a plain forward in the stored precision returns.

Why it matters
    The library initializes a missing weight at random and ignores one too many, with a warning that
    nobody reads. The model runs, and what it writes is nonsense. One NaN makes every comparison of
    logits meaningless, and looks like a leak or a wrong mask to whoever compares.

How it measures
    The lists that `from_pretrained` returns while it loads are counted. Weights and buffers are
    searched, and one forward runs in the precision of the checkpoint and one in that of the check;
    where its logits are not finite, it runs again and the first module is named whose output is not
    finite although its input is. The probe runs on every target before all others and is in the
    report only where it fails. Failures of the others are then explained by the lost numbers.

False alarms
    Weights that the library ties, or declares to be absent from checkpoints, are not counted.
    Infinities in buffers are masks, and minus infinity in a vector switches a bias or a sink off:
    both count only if the forward is not finite.

References
    Hugging Face transformers, `from_pretrained(output_loading_info=True)`; vLLM issue 14126.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.probing import (
    REFUSALS,
    AtMost,
    Cause,
    Evidence,
    Measurement,
    Probe,
    Ruling,
    Subject,
    Unsupported,
    Verdict,
    describe,
    finite,
    verdict_of,
)

SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Load(Probe):
    """Reports what the loader noticed, and numbers that are lost."""

    name = "load"
    title = "the checkpoint has the weights that the config asks for, and all are finite"

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """All notes of the loader, where one of them is a failure; then what is not finite."""
        if any(verdict_of(note) is Verdict.FAIL for note in subject.loaded.load_notes):
            yield from subject.loaded.load_notes
        yield from _weights(subject)
        for dtype in dict.fromkeys((subject.loaded.own_dtype, subject.dtype_name)):
            try:
                yield from _activations(subject, dtype)
            except (Unsupported, *REFUSALS):
                continue  # a forward that raises is the finding of every other probe

    def judge(self, evidence: Evidence) -> Ruling:
        """Every failure is named."""
        broken = [case for case in evidence.measurements if verdict_of(case) is Verdict.FAIL]
        words = "; ".join(case.note or describe(case) for case in broken)
        return Ruling(verdict=Verdict.FAIL, summary=words)


def _weights(subject: Subject) -> Iterator[Measurement]:
    bad = finite.bad_weights(subject.model)
    if not bad:
        return
    named = [f"{each.name} holds {each.words}" for each in bad[:SHOWN]]
    more = [f"{len(bad) - SHOWN} more tensors"] if len(bad) > SHOWN else []
    count = sum(each.count for each in bad)
    yield AtMost(
        "finite weights",
        float(count),
        "weights that are not finite",
        nonfinite=count,
        note="; ".join(named + more),
        cause=Cause(module=bad[0].module),
    )


def _activations(subject: Subject, dtype: str) -> Iterator[Measurement]:
    with subject.at(dtype) as view:
        found = finite.overflow(view, subject.inputs.row)
    if found is None or found.first is None:
        return
    yield AtMost(
        f"finite activations in {dtype}",
        float(found.first.count),
        "values that are not finite",
        nonfinite=found.first.count,
        note=found.words(dtype),
        cause=Cause(module=found.first.module),
    )
