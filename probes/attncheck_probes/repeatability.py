"""The same call twice, whatever ran in between.

What it checks
    In evaluation mode a call gives the same logits every time: at once again, after a longer input,
    after a conversation on a cache, in one forward and in steps. No weight changes on the way.

Why it matters
    Dropout left on, a cache that outlives its conversation, a rotary table that grew for a long
    prompt and never shrank: each makes an answer depend on who asked before. No comparison of two
    paths is worth anything where one path disagrees with itself.

How it measures
    Calls are run again, never taken from memory, and compared. The same short input is asked after
    a shorter and after a longer one, with lengths on both sides of every rotary switch. Weights are
    compared before and after; buffers that changed are listed.

False alarms
    Kernels that add atomically (on a GPU) differ by rounding, which the budget covers; the note
    says so when the two calls are equal but not to the bit. Dynamic NTK scaling depends on history
    by construction of its implementation: that is a `fail` about the scheme. Routers that draw at
    random in training mode are not asked: the model is in evaluation mode.

References
    Hugging Face transformers issue 25104 (dynamic NTK: the cosine cache keeps the longest length
    seen).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from attncheck.probing import (
    AFTER,
    AtMost,
    Figure,
    ForwardSpec,
    Measurement,
    Probe,
    Provenance,
    Rerun,
    Row,
    Subject,
    attempt,
    buffers_of,
    changed,
    weights_in_memory,
)

# Axes: B batch, T positions, V vocabulary.

SHORTEST = 2
SHORTS = 3
Between = Callable[[Subject], None]


@final
@dataclass(frozen=True, kw_only=True)
class Repeatability(Probe):
    """Asks the same thing again, at once and after something else."""

    name: ClassVar[str] = "repeatability"
    title: ClassVar[str] = "the same call gives the same logits, whatever ran before"
    needs: ClassVar[tuple[str, ...]] = ("sees_history",)
    controls: ClassVar[tuple[str, ...]] = ("dropout-active", "rope-scale-switch")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Twice at once, short after long, after another conversation, in steps; then the weights
        and buffers.
        """
        marks, held = _marks(subject), buffers_of(subject.model)
        row = subject.inputs.row
        yield attempt(
            "the same forward twice",
            self._case,
            subject,
            "the same forward twice",
            row,
            lambda spec: None,
        )
        for length in _shorts(subject):
            name = f"{length} tokens after {_shorter(length)} and after {len(row)}"
            yield attempt(name, self._around, subject, name, length)
        name = "the same forward after another conversation"
        yield attempt(name, self._case, subject, name, row, _converse)
        yield attempt("the same steps twice", self._steps, subject)
        yield from _changes(subject, marks, held)

    def _case(self, subject: Subject, name: str, row: Row, between: Between) -> Measurement:
        spec = ForwardSpec((row,))
        first_BTV = _asked(subject, spec)
        between(subject)
        case = _compared(subject, name, _asked(subject, spec), first_BTV)
        provenance = Provenance(AFTER, partial(_again, spec, between))
        return replace(case, rerun=Rerun(spec, spec, provenance))

    def _around(self, subject: Subject, name: str, length: int) -> Measurement:
        row = subject.inputs.row
        _asked(subject, ForwardSpec((row[: _shorter(length)],)))
        return self._case(
            subject, name, row[:length], lambda spec: spec.passes.replay(ForwardSpec((row,)))
        )

    def _steps(self, subject: Subject) -> Measurement:
        subject.can.steps.require()
        spec = ForwardSpec(subject.inputs.tokens, chunks=(subject.inputs.length - 3, 1, 1, 1))
        first_BTV = _asked(subject, spec)
        _converse(subject)
        return _compared(subject, "the same steps twice", _asked(subject, spec), first_BTV)


def _asked(subject: Subject, spec: ForwardSpec) -> Tensor:
    """logits_BTV of a pass that is really run."""
    subject.passes.drop(spec)
    return subject.logits(spec)


def _again(spec: ForwardSpec, between: Between, subject: Subject) -> Tensor:
    between(subject)
    return _asked(subject, spec)


def _compared(subject: Subject, name: str, again_BTV: Tensor, first_BTV: Tensor) -> Measurement:
    exact = torch.equal(again_BTV, first_BTV)
    note = "equal to the bit" if exact else "not equal to the bit"
    return subject.compare(name, again_BTV, first_BTV, note=note)


def _shorter(length: int) -> int:
    return max(SHORTEST, length // 3)


def _shorts(subject: Subject) -> tuple[int, ...]:
    """Lengths below the input's: half of it, and just beyond and below each rotary switch."""
    whole = subject.inputs.length
    near = [
        b.length + step
        for b in subject.inputs.boundaries
        if b.kind == "rope switch"
        for step in (4, -2)
    ]
    return tuple(
        dict.fromkeys(length for length in (*near, whole // 2) if 2 * SHORTEST <= length < whole)
    )[:SHORTS]


def _converse(subject: Subject) -> None:
    """Another conversation: other tokens, with a cache where there is one."""
    other = (subject.inputs.fresh(subject.inputs.length, salt=17),)
    half = subject.inputs.length // 2
    chunks = (half, subject.inputs.length - half) if subject.can.cache else ()
    subject.passes.replay(ForwardSpec(other, chunks=chunks, use_cache=False))


def _marks(subject: Subject) -> dict[str, Tensor]:
    """A few numbers of each weight: copies of all weights would double the memory."""
    return {name: _mark(value) for name, value in weights_in_memory(subject.model).items()}


def _mark(weight: Tensor) -> Tensor:
    return weight.detach().flatten()[:: max(1, weight.numel() // 4096)].clone()


def _changes(
    subject: Subject, marks: dict[str, Tensor], held: dict[str, Tensor]
) -> Iterator[Measurement]:
    weights = [name for name, mark in _marks(subject).items() if not torch.equal(mark, marks[name])]
    buffers = changed(subject.model, held)
    yield AtMost(
        "weights changed by a forward",
        float(len(weights)),
        "weights",
        positions=len(marks) + len(held),
        note=", ".join(sorted(weights)[:3]),
    )
    yield Figure(
        "buffers changed by a forward",
        float(len(buffers)),
        "buffers",
        note=", ".join(sorted(buffers)[:3]),
    )
