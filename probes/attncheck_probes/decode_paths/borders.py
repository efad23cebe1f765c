"""Windows, chunks and rotary switches that the main row is too short for, crossed on a kept cache.

Axes: B batch, N kept positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from attncheck.probing import (
    FAR,
    Measurement,
    Subject,
    Unsupported,
    attempt,
    far_keys_case,
    not_measured,
    reach,
)

TAIL = reach.BEFORE + reach.BEHIND
WAYS = {"in steps": (1,) * TAIL, "in a chunk": (TAIL,)}


def crossed(subject: Subject) -> Iterator[Measurement]:
    """Cases for each border, where borders are crossed and no fault is injected: a control finds
    what it breaks in the main row.
    """
    if subject.passes.injected or not reach.crosses(subject):
        return
    for border in reach.borders(subject):
        try:
            crossing = reach.Crossing(subject, border)
        except Unsupported as reason:
            yield not_measured(f"the {border} crossed", reason)
            continue
        for way, chunks in WAYS.items():
            name = f"the {border} crossed {way}"
            yield attempt(name, partial(_way, crossing), name, chunks)
        yield attempt(FAR.format(border), far_keys_case, crossing)


def _way(crossing: reach.Crossing, name: str, chunks: tuple[int, ...]) -> Measurement:
    got_BNV, start = crossing.continued(chunks), crossing.border.start
    budget = crossing.budget(chunks, got_BNV)
    words = f"{start} tokens, then {'+'.join(map(str, dict.fromkeys(chunks)))}"
    case = crossing.subject.compare(name, got_BNV, crossing.want_BNV, offset=start, budget=budget)
    return replace(case, note=words)
