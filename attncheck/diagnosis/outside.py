"""Faults outside attention: the trusted path has them too.

Both sides of such a case equal the trusted path and still disagree; the difference of their tokens
tells what leaks.

Axes: B batch, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.core.finding import Diagnosis, Location
from attncheck.diagnosis.failure import (
    REFUSED,
    Failure,
    FailureSide,
    max_diff_at,
    real_tokens,
    reset_buffers,
)
from attncheck.faults.engine.injection import plain_calls
from attncheck.faults.engine.trusted import Change
from attncheck.model import direction
from attncheck.model.forward_spec import ForwardSpec, Mask2D, counting
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond

RIGHT = "attention itself is right"


@final
@dataclass(frozen=True)
class OutsideFault:
    """A fault that the trusted path has too, and its difference from the observed logits."""

    fault: str
    parameter: str
    residual: float


def explained_outside(failure: Failure) -> OutsideFault | None:
    """The fault of a case whose sides both equal the trusted path; None where it is unknown."""
    if unsteady(failure):
        return OutsideFault("dropout-active", "two equal calls on the trusted path differ", 0.0)
    if draws(failure.subject):
        text = "two seeds of the random numbers give two answers, and one seed the same twice"
        return OutsideFault("dropout-active", text, 0.0)
    if not failure.wrong:
        return _between(failure)
    return _not_causal(failure)


def within_attention(failure: Failure, found: Diagnosis, place: Location) -> Diagnosis:
    """A fault of the trusted path whose place is an attention module after all: attention is not
    said to be right there, and no mask to be at fault where the trusted path has one of its own.
    """
    said = f"{RIGHT[0].upper()}{RIGHT[1:]}. "
    if not found.advice.startswith(said):
        return found
    if found.fault != "padding-visible" or not _is_ours(failure, place.module):
        return replace(found, advice=found.advice.removeprefix(said))
    text = f"What stands under the padding reaches real tokens inside {place.module}"
    return Diagnosis(
        fault="",
        how="unexplained",
        advice=f"{text}, although no real token reads padding there: look at what the module does "
        "to queries, keys and values before its kernel.",
        sentence=f"{text}, not by its mask.",
        family=found.fault,
    )


def _is_ours(failure: Failure, module: str) -> bool:
    """Whether the trusted path computes the attention of a module itself, with masks of its own."""
    subject = failure.subject
    if failure.trusted.out_of_reach is not None:
        return False
    own = subject.model.get_submodule(module)
    return any(call.module is own for call in plain_calls(subject))


def unsteady(failure: Failure) -> bool:
    """Whether the trusted path gives two answers to one call: then something is random."""
    want = failure.sides[1]
    reset_buffers(failure.trusted)
    if want.trusted_BTV is None:
        return False
    return failure.differ(failure.trusted.logits(want.spec), want.trusted_BTV)


def draws(subject: Subject) -> bool:
    """Whether the model's own forward depends on random numbers, those of its kernels included."""
    return subject.passes.once("draws", lambda: _draws(subject))


def _draws(subject: Subject) -> bool:
    step = (subject.inputs.length - 1, 1) if subject.can.steps else ()
    try:
        return _differs_by_seed(subject, ForwardSpec(subject.inputs.tokens, chunks=step))
    except REFUSED:
        return False  # a call that fails says nothing of random numbers


def _differs_by_seed(subject: Subject, spec: ForwardSpec) -> bool:
    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        subject.passes.drop(spec)
        return subject.logits(spec)

    with torch.random.fork_rng():
        first_BTV, after = run(1), _random_states(subject)
        torch.manual_seed(1)
        if all(map(torch.equal, after, _random_states(subject))):
            return False
        again_BTV, other_BTV = run(1), run(2)
    subject.passes.drop(spec)
    same = torch.equal(first_BTV, again_BTV)
    return same and bool(beyond(first_BTV, other_BTV, subject.budget.value))


def _random_states(subject: Subject) -> list[Tensor]:
    on_cuda = torch.cuda.get_rng_state_all() if subject.device.type == "cuda" else []
    return [torch.get_rng_state(), *on_cuda]


def _between(failure: Failure) -> OutsideFault | None:
    got, want = failure.sides
    trusted = ((side, side.trusted_BTV) for side in failure.sides)
    residual = max(side.residual_of(each_BTV) for side, each_BTV in trusted if each_BTV is not None)
    ignored = _positions_ignored(failure, got)
    if ignored is not None:
        return ignored
    named = _kind_of_change(failure, got.spec, want.spec)
    return OutsideFault(named, RIGHT, residual) if named else None


def _kind_of_change(failure: Failure, got: ForwardSpec, want: ForwardSpec) -> str | None:
    if len(got.tokens) != len(want.tokens):
        return "rows-mixed" if _mixes_sequences(failure, got) else None
    changed = [_changed(left, right) for left, right in zip(got.tokens, want.tokens, strict=True)]
    if len(changed) > 1 and any(not each for each in changed) and any(changed):
        return "rows-mixed" if _moved(failure, changed) else None
    if not any(changed) or got.length != want.length:
        return None
    if isinstance(got.mask, Mask2D):
        hidden = [{t for t, real in enumerate(row) if not real} for row in got.mask.rows]
        if all(set(each) <= rows for each, rows in zip(changed, hidden, strict=True)):
            return "padding-visible"
    leaks = got.positions is None and _moved(failure, changed)
    return "leak-outside-attention" if leaks else None


def _moved(failure: Failure, changed: list[list[int]]) -> bool:
    """Whether the trusted path moves logits before the first changed token of any sequence."""
    got, want = (side.trusted_BTV for side in failure.sides)
    if got is None or want is None or got.shape != want.shape:
        return True
    real_BT = real_tokens(failure.sides[0].spec)
    for row, found in enumerate(changed):
        here, stop = slice(row, row + 1), found[0] if found else got.shape[1]
        real = None if real_BT is None else real_BT[here, :stop]
        if failure.differ(got[here, :stop], want[here, :stop], real):
            return True
    return False


def carried_elsewhere(failure: Failure) -> OutsideFault | None:
    """A leak of the trusted path itself: between sequences, from later tokens, from padding."""
    spec = failure.sides[0].spec
    if len(spec.tokens) > 1 and _mixes_sequences(failure, spec):
        return OutsideFault("rows-mixed", RIGHT, 0.0)
    if reads_ahead(failure):
        return OutsideFault("leak-outside-attention", RIGHT, 0.0)
    return OutsideFault("padding-visible", RIGHT, 0.0) if padding_moves(failure) else None


def under_padding(failure: Failure) -> ForwardSpec | None:
    """The failing forward with other tokens under its padding; None where it has no padding."""
    spec, inputs = failure.sides[0].spec, failure.subject.inputs
    if not isinstance(spec.mask, Mask2D) or all(all(row) for row in spec.mask.rows):
        return None
    rows = []
    for tokens, mask in zip(spec.tokens, spec.mask.rows, strict=True):
        triples = zip(tokens, inputs.other(tokens, salt=31), mask, strict=True)
        rows.append(tuple(token if real else new for token, new, real in triples))
    return replace(spec, tokens=tuple(rows))


def padding_moves(failure: Failure) -> bool:
    """Whether tokens under the padding move real logits on the trusted path."""
    changed, spec, trusted = under_padding(failure), failure.sides[0].spec, failure.trusted
    if changed is None:
        return False
    return failure.differ(trusted.logits(spec), trusted.logits(changed), real_tokens(spec))


def _mixes_sequences(failure: Failure, got: ForwardSpec) -> bool:
    """Whether a sequence gives other logits beside other tokens, on the trusted path.

    That it differs from the sequence alone is not enough: a batch may be computed in another way.
    """
    together_BTV, real_BT = failure.trusted.logits(got), real_tokens(got)
    for row in range(len(got.tokens)):
        here = slice(row, row + 1)
        real = None if real_BT is None else real_BT[here]
        beside_BTV = failure.trusted.logits(beside_others(failure, got, row))
        if failure.differ(beside_BTV[here], together_BTV[here], real):
            return True
    return False


def beside_others(failure: Failure, spec: ForwardSpec, row: int) -> ForwardSpec:
    """The same forward with other tokens in every sequence but one."""
    inputs = failure.subject.inputs
    rows = (
        tokens if number == row else inputs.other(tokens, salt=37)
        for number, tokens in enumerate(spec.tokens)
    )
    return replace(spec, tokens=tuple(rows))


def _changed(left: Row, right: Row) -> list[int]:
    return [t for t, (one, other) in enumerate(zip(left, right, strict=False)) if one != other]


def _positions_ignored(failure: Failure, got: FailureSide) -> OutsideFault | None:
    """Explicit positions that change nothing on the trusted path either, although they should."""
    spec, subject = got.spec, failure.subject
    columns = counting(len(spec.tokens), spec.length)
    if spec.positions is None or spec.positions == columns or not subject.can.takes_positions:
        return None
    residual = got.residual_of(failure.trusted.logits(spec, Change(positions=columns)))
    if residual > failure.budget:
        return None
    words, length = "the positions of the call change nothing", subject.inputs.length
    if not _moves(failure, tuple(reversed(range(length)))):
        return OutsideFault("position-ids-ignored", words, residual)
    if isinstance(spec.mask, Mask2D) and _moves(failure, tuple(range(1, length + 1))):
        return OutsideFault("position-ignores-padding", words, residual)
    return None


def _moves(failure: Failure, row: Row) -> bool:
    """Whether other positions of a plain sequence move the logits at all."""
    plain, trusted = ForwardSpec(failure.subject.inputs.tokens), failure.trusted
    moved_BTV = trusted.logits(plain, Change(positions=(row,)))
    return failure.differ(trusted.logits(plain), moved_BTV)


def _not_causal(failure: Failure) -> OutsideFault | None:
    """Chunks against one forward: the first chunk alone gives the observed logits, the whole
    sequence does not.
    """
    side, trusted = failure.sides[0], failure.trusted
    got = side.spec
    first = got.chunks[0] if len(got.chunks) > 1 else 0
    if (
        not first
        or side.provenance is not None
        or got.positions is not None
        or got.mask is not None
    ):
        return None
    alone_BTV = trusted.logits(ForwardSpec(tuple(row[:first] for row in got.tokens)))
    whole_BTV = trusted.logits(ForwardSpec(got.tokens))[:, :first]
    residual = max_diff_at(alone_BTV, side.observed_BTV[:, :first])
    if residual > failure.budget or not failure.differ(whole_BTV, alone_BTV):
        return None
    return OutsideFault("leak-outside-attention", RIGHT, residual) if reads_ahead(failure) else None


def reads_ahead(failure: Failure) -> bool:
    """Whether another last token moves earlier logits on the trusted path of a model that is not
    meant to read it.
    """
    if direction.reads_ahead(failure.subject.model):
        return False
    inputs, trusted = failure.subject.inputs, failure.trusted
    moved = ForwardSpec((inputs.other(inputs.row, inputs.length - 1),))
    plain_BTV, moved_BTV = trusted.logits(ForwardSpec(inputs.tokens)), trusted.logits(moved)
    return failure.differ(plain_BTV[:, :-1], moved_BTV[:, :-1])
