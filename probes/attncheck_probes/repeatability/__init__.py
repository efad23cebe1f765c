"""The same call gives the same logits, whatever ran in between.

What it checks
    In evaluation mode a call gives the same logits every time: at once again, after a longer input,
    after a conversation on a cache, a batch, a training step, a roll-back, another dtype and a
    forward that an exception ended; in one forward and in steps. No weight changes on the way, and
    no tensor that the caller passed in. A row of the same tokens in another order is another row.

Why it matters
    Dropout left on, a cache that outlives its conversation, a rotary table that grew for a long
    prompt and never shrank, a prompt memory with too short a key, embeddings scaled in place: each
    makes an answer depend on earlier requests. No comparison of two paths proves anything where one
    path disagrees with itself.

How it measures
    Calls really run again, and are compared. The same short input runs after a shorter and after a
    longer one, with lengths on both sides of every rotary switch. Other things run before the main
    row does again: the exception comes from a hook behind the last layer, the training step has
    every dropout at zero. Two rows that differ by a swap run alone and in one batch. Weights and
    arguments are compared before and after; buffers that changed are listed.

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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attncheck.probing import (
    AFTER,
    Cause,
    Comparison,
    ForwardSpec,
    Measurement,
    Probe,
    Provenance,
    Rerun,
    Row,
    Subject,
    attempt,
    buffers_of,
    chosen,
    media_cases,
)
from attncheck_probes.repeatability import arguments, between, weights

# Axes: B batch, T positions, V vocabulary.

STEPS = "the same steps twice"
SHORTEST = 1
SHORTS = 3
AFTER_WHAT: dict[str, between.Between] = {
    "another conversation": between.conversation,
    "a batch": between.batch,
    "tokens were rolled back": between.rollback,
    "a training step": between.training,
    "another dtype": between.other_dtype,
    "an exception": between.interruption,
}
KEPT_FROM = {
    "a training step": "kept-from-training",
    "another dtype": "kept-from-dtype",
    "an exception": "kept-from-error",
}
"""The fault that each of these shows."""


@dataclass(frozen=True, kw_only=True)
class Repeatability(Probe):
    """Runs the same call again, at once and after something else."""

    name = "repeatability"
    title = "the same call gives the same logits, whatever ran before"
    needs = ("sees_history",)
    controls = (
        "dropout-active",
        "rope-scale-switch",
        "input-overwritten",
        "kept-from-error",
        "kept-from-training",
        "kept-from-dtype",
        "remembers-content",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Twice at once, after something else, in steps; then the weights and buffers."""
        samples, buffers = weights.samples(subject), buffers_of(subject.model)
        row = subject.inputs.row
        if chosen(STEPS) and subject.can.steps:  # before anything runs that a model may keep
            subject.logits(_step_spec(subject))
        name = "the same forward twice"  # else what ran before is not the reason
        yield (twice := attempt(name, _twice, subject, name, row, between.nothing))
        for length in _shorts(subject):
            name = f"{length} tokens after {_shorter(length)} and after {len(row)}"
            yield attempt(name, _around, subject, name, length)
        _run(subject, ForwardSpec((row,)))
        for what, runs in AFTER_WHAT.items():
            name = f"the same forward after {what}"
            fault = "" if getattr(twice, "beyond", 0) else KEPT_FROM.get(what, "")
            yield attempt(name, _after, subject, name, fault, runs)
        yield attempt(STEPS, _steps, subject, STEPS)
        yield from arguments.argument_cases(subject)
        yield from media_cases.history(subject)
        yield from weights.changes(subject, samples, buffers)


def _twice(subject: Subject, name: str, row: Row, runs: between.Between) -> Comparison:
    """A row before and after something else."""
    _run(subject, ForwardSpec((row,)))
    return _once_more(subject, name, ForwardSpec((row,)), runs)


def _once_more(subject: Subject, name: str, spec: ForwardSpec, runs: between.Between) -> Comparison:
    """A call after something else, against what it gave when it ran last."""
    first_BTV = subject.logits(spec)
    case = _compared(subject, name, _again(spec, runs, subject), first_BTV)
    provenance = Provenance(AFTER, partial(_again, spec, runs))
    return replace(case, rerun=Rerun(spec, spec, provenance))


def _after(subject: Subject, name: str, fault: str, runs: between.Between) -> Measurement:
    case = _once_more(subject, name, ForwardSpec(subject.inputs.tokens), runs)
    return replace(case, cause=Cause(fault)) if fault and case.beyond else case


def _around(subject: Subject, name: str, length: int) -> Measurement:
    row = subject.inputs.row
    _run(subject, ForwardSpec((row[: _shorter(length)],)))
    return _twice(subject, name, row[:length], between.whole_row)


def _steps(subject: Subject, name: str) -> Measurement:
    return _once_more(subject, name, _step_spec(subject), between.batch_and_conversation)


def _step_spec(subject: Subject) -> ForwardSpec:
    subject.can.steps.require()
    return ForwardSpec(subject.inputs.tokens, chunks=(subject.inputs.length - 1, 1))


def _run(subject: Subject, spec: ForwardSpec) -> Tensor:
    """logits_BTV of a forward that really runs."""
    subject.passes.drop(spec)
    return subject.logits(spec)


def _again(spec: ForwardSpec, runs: between.Between, subject: Subject) -> Tensor:
    runs(subject)
    return _run(subject, spec)


def _compared(subject: Subject, name: str, again_BTV: Tensor, first_BTV: Tensor) -> Comparison:
    note = f"{'' if torch.equal(again_BTV, first_BTV) else 'not '}equal to the bit"
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
