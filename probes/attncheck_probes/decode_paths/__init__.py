"""The same tokens at once, one by one and in chunks.

What it checks
    The logits of a forward over the whole row equal those of the same row fed token by token, and
    in chunks of many sizes, on a cache.

Why it matters
    Training and evaluation use one path, serving the other. With P tokens in the cache, query i of
    a new block may read the keys at positions up to P + i; a square mask, positions that start
    again, a lost slot or a recurrent state that starts from zero keep every shape and change the
    answer.

How it measures
    One forward without a cache is the reference. Schedules: one token at a time; halves; uneven
    chunks; all but one, then one; chunks of every window and chunk size of the config, one less and
    one more. Each with the positions left to the model, passed explicitly, and left to the model
    beside a full-length 2D mask; a way that gave the logits of the first one to the bit, in three
    schedules with prefills, chunks and steps, is not asked in the others. The row cut in two at
    every position. Then a row of 130 tokens after a long prefill and in a long chunk, since kernels
    have block sizes that no config names.
    With `--reach`, borders of the config behind the row are crossed on one kept cache.

False alarms
    Rotary schemes that change with the length by construction (dynamic NTK, LongRoPE at its switch)
    disagree with themselves: that is a `fail` whose cause is the scheme. Approximate caches
    (quantized, evicting) are left to the probe `cache-kinds`.

References
    Hugging Face transformers issues 46084 and 46741 (state-space models lose their state between
    chunks); 36536 (rounding that looks like this fault; precision escalation tells them apart).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from attncheck.probing import (
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    attempt,
    decoded,
    media_cases,
    merged,
)
from attncheck_probes.decode_paths import ways
from attncheck_probes.decode_paths.borders import crossed
from attncheck_probes.decode_paths.ways import WAYS, Schedule, proof

EVERYWHERE = "two chunks, cut at every position"


@dataclass(frozen=True, kw_only=True)
class DecodePaths(Probe):
    """Feeds one row in many schedules and expects the logits of one forward."""

    name = "decode-paths"
    title = "full, token-by-token and chunked decode agree"
    needs = ("decodes", "sees_history", "steps")
    controls = (
        "position-restart",
        "cache-drops-token",
        "state-dropped",
        "mask-top-left",
        "leak-outside-attention",
    )

    schedules: tuple[Schedule, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Every schedule with each way of passing positions, the quick and telling ones first."""
        schedules = self.schedules or schedules_for(subject)
        for way in WAYS:
            for schedule in schedules:
                name = f"{named(schedule)}, {way}"
                yield attempt(name, self._case, subject, name, schedule, way)
        yield attempt(EVERYWHERE, _cut_everywhere, subject)
        for name, chunks in LONG.items():
            yield attempt(name, decoded, subject, name, chunks)
        yield from media_cases.decoded(subject)
        yield from crossed(subject)

    def _case(self, subject: Subject, name: str, schedule: Schedule, way: str) -> Measurement:
        whole, fed = ForwardSpec(subject.inputs.tokens), ways.fed(subject, schedule, way)
        implicit = ways.fed(subject, schedule, WAYS[0])
        if fed != implicit and ways.as_implicit(subject, way, implicit):
            case = subject.compare_forwards(name, implicit, whole, note=ways.AS_IMPLICIT)
            if not case.beyond and not case.nonfinite:
                return case
        return subject.compare_forwards(name, fed, whole)


def _cut_everywhere(subject: Subject) -> Measurement:
    whole, length = ForwardSpec(subject.inputs.tokens), subject.inputs.length
    cases = []
    for cut in subject.inputs.everywhere:
        fed, note = replace(whole, chunks=(cut, length - cut)), f"cut at {cut}"
        cases.append(subject.compare_forwards(EVERYWHERE, fed, whole, note=note))
    return merged(EVERYWHERE, cases)


LONG: dict[str, Callable[[int], Schedule]] = {
    "a long row, a long prefill": lambda length: (
        max(1, length - 18),
        min(15, length - 4),
        *(1, 1, 1),
    ),
    "a long row, a long chunk": lambda length: (length // 2, length - length // 2 - 1, 1),
}


def schedules_for(subject: Subject) -> tuple[Schedule, ...]:
    """The schedules that reach this model's boundaries, without repeats."""
    length = subject.inputs.length
    usual = [
        *proof(length),
        (1, length - 1),
        chunks_of(max(2, length // 4), length),
        (1,) * length,
    ]
    near = [
        chunks_of(size, length)
        for b in subject.inputs.boundaries
        for size in (b.length - 1, b.length, b.length + 1)
        if size > 1
    ]
    return tuple(
        dict.fromkeys(
            schedule for schedule in (*usual, *near) if all(schedule) and len(schedule) > 1
        )
    )


def chunks_of(size: int, length: int) -> Schedule:
    """Chunks of one size, the last one shorter where it must be."""
    rest = length % size
    return (size,) * (length // size) + ((rest,) if rest else ())


def named(schedule: Schedule) -> str:
    """A schedule in words."""
    if set(schedule) == {1}:
        return "one token at a time"
    if len(schedule) > 4 and len(set(schedule[:-1])) == 1:
        return f"chunks of {schedule[0]}"
    return f"chunks {'+'.join(map(str, schedule))}"
