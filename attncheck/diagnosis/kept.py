"""A call that is wrong because of what a module kept from earlier calls.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Location
from attncheck.diagnosis.failure import REFUSED, Failure, FailureSide
from attncheck.diagnosis.locate import source_of
from attncheck.model.module_memory import Key, ModuleMemory
from attncheck.model.provenance import AFTER
from attncheck.report.numbers import number

MOST = 8
"""So many attributes are put back one by one at most."""
WIDTH = 40


def kept_between_calls(failure: Failure) -> tuple[Diagnosis, Location] | None:
    """What a module keeps that makes the failing call wrong; None where the call is as wrong with
    everything put back. The proof is the trusted path's logits from the call with that put back.
    """
    memory: ModuleMemory = failure.subject.loaded.memory
    changed = memory.changed() or _changed_again(failure, memory)
    for side in failure.sides if changed else ():
        if _mended(failure, side, memory, changed) is None:
            continue
        for keys in (*([key] for key in changed[:MOST]), changed):
            residual = _mended(failure, side, memory, keys)
            if residual is not None and math.isfinite(residual):
                return _said(failure, memory, keys[0], residual)
    return None


def _changed_again(failure: Failure, memory: ModuleMemory) -> list[Key]:
    """What modules keep after what came in front of the failing call has run once more: the case
    may have put all of it back.
    """
    for side in failure.sides:
        if side.provenance is not None and side.provenance.how == AFTER:
            try:
                side.again(failure.subject)
            except REFUSED:
                continue
    return memory.changed()


def left_behind(failure: Failure, found: Diagnosis) -> tuple[Diagnosis, Location] | None:
    """What was measured of a call after another one, with what the other left on a module; None
    where it is no such call, or nothing that was left makes it wrong.
    """
    provenance = failure.sides[0].provenance
    kept = kept_between_calls(failure) if provenance and provenance.how == AFTER else None
    if kept is None:
        return None
    text = kept[0].sentence
    advice, sentence = f"{text} {found.advice}", f"{text} {found.sentence}".strip()
    return replace(found, advice=advice, sentence=sentence), kept[1]


def _mended(
    failure: Failure, side: FailureSide, memory: ModuleMemory, keys: list[Key]
) -> float | None:
    """The residual with these put back; infinity where the model cannot run without what it keeps,
    such as hooks that the library installs once: a part of it may do.
    """
    try:
        return _residual(failure, side, memory, keys)
    except REFUSED:
        return math.inf


def _residual(
    failure: Failure, side: FailureSide, memory: ModuleMemory, keys: list[Key]
) -> float | None:
    """How far the call with these put back is from the trusted path; None where it is wrong, or no
    other than before.
    """

    def fresh(run: Callable[[], Tensor]) -> Tensor:
        with memory.put_back(keys):
            return run()

    got_BTV = fresh(lambda: _again(failure, side))
    if got_BTV.shape != side.observed_BTV.shape:
        return None
    if not failure.differ(got_BTV, side.observed_BTV, side.real):
        return None
    want_BTV = side.kept(fresh(lambda: failure.trusted.logits(side.spec)))
    if got_BTV.shape != want_BTV.shape:
        return None
    differs = failure.differ(got_BTV, want_BTV, side.real)
    return None if differs else float((got_BTV - want_BTV).abs().max())


def _again(failure: Failure, side: FailureSide) -> Tensor:
    made = side.provenance
    if made is not None and made.how != AFTER:
        return side.again(failure.subject)
    passes = failure.subject.passes
    passes.drop(side.spec)
    logits_BTV = failure.subject.logits(side.spec)
    passes.drop(side.spec)
    return logits_BTV


def _said(
    failure: Failure, memory: ModuleMemory, key: Key, residual: float
) -> tuple[Diagnosis, Location]:
    model, (name, attribute) = failure.subject.model, key
    owner = name or type(model).__name__
    before = _words(memory.values[key]) if key in memory.values else "nothing"
    text = (
        f"`{owner}.{attribute}` is kept between calls: it held {before} when the model was loaded. "
        f"With that put back the same call gives the right logits, to {number(residual)}."
    )
    advice = f"{text} Keep it on the cache, or set it anew where a call begins."
    found = Diagnosis(fault="", how="measured", residual=residual, advice=advice, sentence=text)
    place = Location(module=owner, layer=layer_number(name), source=source_of(model, name))
    return found, place


def _words(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() > 1:
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value.item() if isinstance(value, Tensor) else value)
    return text if len(text) <= WIDTH else f"a {type(value).__name__}"
