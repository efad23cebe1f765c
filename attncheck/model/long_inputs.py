"""A row longer than the model's boundaries require: kernels and hand-written loops have block sizes
that no config names.

Logits are kept at some positions only: next to the ends and to multiples of 32, and every eighth.

Axes: B batch, T positions, N kept positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attncheck.attention.masks import readable
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Comparison, Rerun, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.noise_floor import own_budget
from attncheck.model.subject import Subject

LONG = 130
ENDS = (32, 33, 64, 128)
"""Lengths at which block sizes end, and one beyond."""
BESIDE = 3
STRIDE = 8


def long_row(subject: Subject) -> Row:
    """The main row and as many drawn tokens as make it `LONG`, or as fit.

    Raises:
        Unsupported: that is not longer than the main row.
    """
    inputs = subject.inputs
    length = min(LONG, inputs.room)
    if length <= inputs.length:
        raise Unsupported(
            f"no more than the usual {inputs.length} tokens fit below the context and every "
            "rotary switch"
        )
    return inputs.row + inputs.fresh(length - inputs.length, salt=41)


def kept(length: int) -> tuple[int, ...]:
    """The positions at which the logits of a long row are compared."""
    ends = [end - back for end in (*ENDS, length) for back in range(1, BESIDE + 1)]
    return tuple(sorted({at for at in (*range(0, length, STRIDE), *ends) if at < length}))


def ends_compared(subject: Subject, name: str) -> list[Comparison]:
    """The logits of prefixes of a long row against those of the whole: one case for each length."""
    row = long_row(subject)
    ends = [end for end in ENDS if end < len(row)] or [len(row) - 1]
    return [
        _compared(subject, name, row, ForwardSpec((row[:end],)), f"the first {end} tokens alone")
        for end in ends
    ]


def prefixes_compared(subject: Subject, name: str) -> list[Comparison]:
    """The logits of every prefix of the main row against those of the row, as far as no rotary
    switch lies between.
    """
    inputs = subject.inputs
    row = inputs.row[: inputs.room or inputs.length]
    return [_prefix(subject, name, row, end) for end in inputs.everywhere if end < len(row)] or [
        _prefix(subject, name, row, len(row))
    ]


def _prefix(subject: Subject, name: str, row: Row, end: int) -> Comparison:
    """A prefix alone. Where it began a pass on a cache it ran already; only where that differs, it
    runs by itself.
    """
    whole, begun = ForwardSpec((row,)), ForwardSpec((row,), chunks=(end, len(row) - end))
    note = f"the first {end} of {len(row)} tokens alone"
    compared = partial(subject.compare_forwards, name, want=whole, at=slice(0, end), note=note)
    if subject.passes.knows(begun):
        case = compared(begun)
        if not case.beyond and not case.nonfinite:
            return case
    case = compared(ForwardSpec((row[:end],)))
    _require_fixed_keys(subject, row, case)
    return case


def decoded(subject: Subject, name: str, chunks: Callable[[int], tuple[int, ...]]) -> Comparison:
    """A long row fed in chunks on a cache against one forward of it."""
    row = long_row(subject)
    sizes = chunks(len(row))
    return _compared(
        subject, name, row, ForwardSpec((row,), chunks=sizes), f"chunks {'+'.join(map(str, sizes))}"
    )


def _compared(subject: Subject, name: str, row: Row, spec: ForwardSpec, note: str) -> Comparison:
    everywhere_N, whole = kept(len(row)), ForwardSpec((row,))
    here_N = tuple(at for at in everywhere_N if at < spec.length)
    want_BNV = subject.passes.logits(whole, everywhere_N)[:, : len(here_N)]
    got_BNV = subject.passes.logits(spec, here_N)
    case = subject.compare(name, got_BNV, want_BNV, note=note)
    if case.beyond:  # what the main row's rounding explains, a longer row's does
        budget = own_budget(subject.passes, whole, everywhere_N)
        case = subject.compare(name, got_BNV, want_BNV, budget=budget, note=note)
    _require_fixed_keys(subject, row, case)
    first = case.divergence.first_position
    # Columns are not positions here: only some positions of the row were kept.
    divergence = replace(
        case.divergence,
        first_position=None if first is None else here_N[first],
        profile=replace(case.divergence.profile, values=()),
    )
    both = Rerun(spec, whole) if spec.length == len(row) else None
    return replace(case, divergence=divergence, cuts=spec.cuts, rerun=both)


def _require_fixed_keys(subject: Subject, row: Row, case: Comparison) -> None:
    if verdict_of(case) is Verdict.FAIL and _chooses_by_content(subject, row):
        raise Unsupported(
            "layers choose keys by content, and equal scores are settled by how long the row is"
        )


def _chooses_by_content(subject: Subject, row: Row) -> bool:
    """Whether other tokens make a layer hide other keys, as sparse attention does."""
    if not subject.can.watch:
        return False
    left, right = (_hidden(subject, each) for each in (row, subject.inputs.other(row)))
    return len(left) != len(right) or not all(map(torch.equal, left, right))


def _hidden(subject: Subject, row: Row) -> list[Tensor]:
    masks = subject.record_calls((row,), lambda call: call.mask)
    return [~readable(mask) for mask in masks if isinstance(mask, Tensor)]
