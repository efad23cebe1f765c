"""Prompts of one token, and around each window and chunk, on a buffer that was made in advance.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.probing import (
    Cause,
    Comparison,
    ForwardSpec,
    Measurement,
    Subject,
    merged,
    reference_forward,
)

STEPS = 3
"""Tokens that are fed one by one behind a prompt: enough to leave a window that it just fills."""
SWITCH = "rope switch"


def short_prompts(subject: Subject, name: str, kind: str) -> Measurement:
    """Prompts of each of these lengths, and a few steps behind each."""
    (subject.can.library_cache & subject.can.steps).require()
    cases = {each: _prompt(subject, name, kind, each) for each in _lengths(subject)}
    case = merged(name, list(cases.values()))
    wrong = [length for length, each in cases.items() if each.beyond]
    return replace(case, cause=Cause("short-prompt-lost")) if wrong == [1] else case


def _prompt(subject: Subject, name: str, kind: str, length: int) -> Comparison:
    row = subject.inputs.row[: length + STEPS]
    spec = ForwardSpec((row,), chunks=(length, *(1,) * (len(row) - length)), cache_kind=kind)
    want = reference_forward(subject, row, length)
    return subject.compare_forwards(name, spec, want, note=f"a prompt of {length}")


def _lengths(subject: Subject) -> tuple[int, ...]:
    """One token, and each window or chunk with one token less and one more."""
    bounds = (each.length for each in subject.inputs.boundaries if each.kind != SWITCH)
    near = (length + step for length in bounds for step in (-1, 0, 1))
    room = subject.inputs.length - STEPS
    return tuple(dict.fromkeys(each for each in (1, *near) if 0 < each <= room))
