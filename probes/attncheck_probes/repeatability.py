"""The same call gives the same logits, whatever ran in between.

What it checks
    In evaluation mode a call gives the same logits every time: at once again, after a longer input,
    after a conversation on a cache, in one forward and in steps. No weight changes on the way.

Why it matters
    Dropout left on, a cache that outlives its conversation, a rotary table that grew for a long
    prompt and never shrank: each makes an answer depend on earlier requests. No comparison of two
    paths proves anything where one path disagrees with itself.

How it measures
    Calls really run again, and are compared. The same short input runs after a shorter and after a
    longer one, with lengths on both sides of every rotary switch. Weights are compared before and
    after; buffers that changed are listed.

False alarms
    Kernels that add atomically (on a GPU) differ by rounding, which the budget covers; the note
    says so when the two calls are equal but not to the bit. Dynamic NTK scaling depends on history
    by construction of its implementation: that is a `fail` about the scheme. Routers that draw at
    random in training mode do not matter: the model is in evaluation mode.

References
    Hugging Face transformers issue 25104 (dynamic NTK: the cosine cache keeps the longest length
    seen).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attncheck.probing import (
    AFTER,
    AtMost,
    Comparison,
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


@dataclass(frozen=True, kw_only=True)
class Repeatability(Probe):
    """Runs the same call again, at once and after something else."""

    name = "repeatability"
    title = "the same call gives the same logits, whatever ran before"
    needs = ("sees_history",)
    controls = ("dropout-active", "rope-scale-switch")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Twice at once, short after long, after another conversation, in steps; then the weights
        and buffers.
        """
        samples, buffers = _samples(subject), buffers_of(subject.model)
        row = subject.inputs.row
        yield _attempted(subject, "the same forward twice", row, _nothing)
        for length in _shorts(subject):
            name = f"{length} tokens after {_shorter(length)} and after {len(row)}"
            yield attempt(name, _around, subject, name, length)
        yield _attempted(subject, "the same forward after another conversation", row, _converse)
        yield attempt("the same steps twice", _steps, subject, "the same steps twice")
        yield from _changes(subject, samples, buffers)


def _attempted(subject: Subject, name: str, row: Row, between: Between) -> Measurement:
    return attempt(name, _twice, subject, name, row, between)


def _twice(subject: Subject, name: str, row: Row, between: Between) -> Measurement:
    spec = ForwardSpec((row,))
    first_BTV = _run(subject, spec)
    case = _compared(subject, name, _again(spec, between, subject), first_BTV)
    provenance = Provenance(AFTER, partial(_again, spec, between))
    return replace(case, rerun=Rerun(spec, spec, provenance))


def _around(subject: Subject, name: str, length: int) -> Measurement:
    row = subject.inputs.row
    _run(subject, ForwardSpec((row[: _shorter(length)],)))
    return _twice(subject, name, row[:length], _whole_row)


def _steps(subject: Subject, name: str) -> Measurement:
    subject.can.steps.require()
    spec = ForwardSpec(subject.inputs.tokens, chunks=(subject.inputs.length - 3, 1, 1, 1))
    first_BTV = _run(subject, spec)
    return _compared(subject, name, _again(spec, _converse, subject), first_BTV)


def _run(subject: Subject, spec: ForwardSpec) -> Tensor:
    """logits_BTV of a forward that really runs."""
    subject.passes.drop(spec)
    return subject.logits(spec)


def _again(spec: ForwardSpec, between: Between, subject: Subject) -> Tensor:
    between(subject)
    return _run(subject, spec)


def _compared(subject: Subject, name: str, again_BTV: Tensor, first_BTV: Tensor) -> Comparison:
    exact = torch.equal(again_BTV, first_BTV)
    note = "equal to the bit" if exact else "not equal to the bit"
    return subject.compare(name, again_BTV, first_BTV, note=note)


def _shorter(length: int) -> int:
    return max(SHORTEST, length // 3)


def _shorts(subject: Subject) -> tuple[int, ...]:
    """Lengths below the input's: half of it, and just above and below each rotary switch."""
    whole, bounds = subject.inputs.length, subject.inputs.boundaries
    switches = (each.length for each in bounds if each.kind == "rope switch")
    lengths = (*(switch + step for switch in switches for step in (4, -2)), whole // 2)
    fitting = dict.fromkeys(each for each in lengths if 2 * SHORTEST <= each < whole)
    return tuple(fitting)[:SHORTS]


def _nothing(subject: Subject) -> None:
    """Nothing runs in between."""


def _whole_row(subject: Subject) -> None:
    subject.passes.replay(ForwardSpec(subject.inputs.tokens))


def _converse(subject: Subject) -> None:
    """Another conversation: other tokens, with a cache where the model has one."""
    other, half = subject.inputs.fresh(subject.inputs.length, salt=17), subject.inputs.length // 2
    chunks = (half, subject.inputs.length - half) if subject.can.cache else ()
    subject.passes.replay(ForwardSpec((other,), chunks=chunks))


def _samples(subject: Subject) -> dict[str, Tensor]:
    """A few numbers of each weight: copies of all weights would double the memory."""
    return {name: _sample(value) for name, value in weights_in_memory(subject.model).items()}


def _sample(weight: Tensor) -> Tensor:
    return weight.detach().flatten()[:: max(1, weight.numel() // 4096)].clone()


def _changes(
    subject: Subject, samples: dict[str, Tensor], buffers: dict[str, Tensor]
) -> Iterator[Measurement]:
    now = _samples(subject)
    weights = sorted(name for name in now if not torch.equal(now[name], samples[name]))
    name, compared = "weights changed by a forward", len(samples) + len(buffers)
    note = ", ".join(weights[:3])
    yield AtMost(name, float(len(weights)), "weights", positions=compared, note=note)
    name, found = "buffers changed by a forward", sorted(changed(subject.model, buffers))
    yield Figure(name, float(len(found)), "buffers", note=", ".join(found[:3]))
