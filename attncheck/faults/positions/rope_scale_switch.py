"""What it is
    The rotary scale changes with the length while cached keys keep the old one.

How it looks
    Right below the switch length; beyond it cached and uncached logits differ. The keys of the
    first tokens were rotated with one base, the queries with another.

Where it comes from
    Dynamic NTK and LongRoPE do this by construction: it is the scheme, not this model's code.

What to change
    Fix the scale for the length that you serve (`factor` and the original length in the config), or
    fill the cache anew when the switch is crossed.

Axes: B batch, G key/value heads, T positions of this call, S key positions, D head width, V
vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.rope import (
    CosSin,
    Tables,
    inv_freq_buffers,
    recorded_tables,
    replaced_tables,
)
from attncheck.core.errors import CannotInject, Unsupported
from attncheck.core.measurement import BEYOND_ROUNDING
from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Trusted,
    WrongForward,
    expected,
    injection,
    schedule,
)
from attncheck.model.forward_spec import ForwardSpec, counting
from attncheck.model.inputs import Row
from attncheck.model.provenance import AFTER
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond, max_abs

STRETCH = 0.5
SHORT = 2


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Halve the rotary frequencies once a call goes beyond half of the input.

    They stay so until a call of a quarter or less, as a table that is kept for the longest call.
    """
    tables = inv_freq_buffers(subject.model)
    if not tables:
        raise CannotInject("no rotary frequencies are kept in a buffer")
    saved = {name: value.clone() for name, value in tables.items()}
    boundary = subject.inputs.length // 2

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT = call.get(subject.forward_adapter.ids_name)
        if isinstance(ids_BT, Tensor):
            total = injection.tokens_before(subject, call) + ids_BT.shape[1]
            if total > boundary or total <= boundary // 2:
                _write(tables, saved, STRETCH if total > boundary else 1.0)
        return call

    healthy_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    try:
        with injection.at_arguments(subject, edit):
            with torch.no_grad():
                changed_BTV = subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV
            if not beyond(changed_BTV, healthy_BTV, subject.budget.value):
                raise CannotInject(
                    "the rotary frequencies in the buffers are not what the model uses"
                )
            yield
    finally:
        _write(tables, saved, 1.0)


def _write(tables: dict[str, Tensor], saved: dict[str, Tensor], factor: float) -> None:
    with torch.no_grad():
        for name, value in tables.items():
            value.copy_(saved[name] * factor)


def _by_chunk(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked and forward.attends:
        yield Hypothesis(predict=schedule.scheduled_logits, holds=keys_depend_on_length)


def keys_depend_on_length(trusted: Trusted) -> bool:
    """Whether the first layer's keys of the same tokens differ with the length of the call."""
    row, half = trusted.subject.inputs.row, trusted.subject.inputs.length // 2
    short_BGSD, long_BGSD = (_first_keys(trusted, each)[:, :, :half] for each in (row[:half], row))
    rounding = torch.finfo(long_BGSD.dtype).eps * max_abs(long_BGSD)
    return beyond(short_BGSD, long_BGSD, BEYOND_ROUNDING * rounding)


def _first_keys(trusted: Trusted, row: Row) -> Tensor:
    return trusted.subject.record_calls((row,), lambda call: call.key_BGSD)[0]


def _by_tables(forward: WrongForward) -> Iterator[Hypothesis]:
    """Tables of the length of each call, begun after a short or a long one; a table left behind."""
    if not forward.attends or forward.padded or not tables_depend_on_length(forward.trusted):
        return
    provenance = forward.provenance
    if provenance is not None and provenance.how == AFTER:
        yield Hypothesis("the table of a longer call stayed", predict=_left_behind)
    if provenance is not None and provenance.columns and not forward.spec.chunks:
        predict = partial(_from_prefixes, provenance.columns)
        yield Hypothesis("each token from a forward of its own", predict=predict)
    if forward.chunked:
        yield Hypothesis(predict=partial(_of_each_call, False))
        yield Hypothesis("begun after a longer call", predict=partial(_of_each_call, True))


def tables_of(trusted: Trusted, *rows: tuple[int, ...]) -> Tables:
    """The tables of the last of several forwards, run in this order after a short one."""
    passes = trusted.subject.passes
    found: Tables = {}
    with torch.no_grad():
        # A short call resets tables that a model keeps from its longest call so far.
        passes.call((trusted.subject.inputs.row[:SHORT],), use_cache=False)
        for row in rows:
            with recorded_tables(trusted.subject.model) as found:
                passes.call((row,), use_cache=False)
    return found


def tables_depend_on_length(trusted: Trusted) -> bool:
    """Whether the table of the same positions differs between a short call and a whole one."""
    row = trusted.subject.inputs.row
    shorter, whole = tables_of(trusted, row[: len(row) // 3]), tables_of(trusted, row)
    return any(
        not _same(one, other)
        for name in shorter
        for one, other in zip(shorter[name], whole.get(name, []), strict=False)
    )


def _same(shorter: CosSin, longer: CosSin) -> bool:
    length = shorter[0].shape[-2]
    rounding = torch.finfo(shorter[0].dtype).eps
    return not any(
        beyond(one, other[..., :length, :], BEYOND_ROUNDING * rounding)
        for one, other in zip(shorter, longer, strict=True)
    )


def _of_each_call(after_longer: bool, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Each chunk under the table of a call of its length; keys stay as they were rotated."""
    if len(spec.tokens) > 1 or spec.positions not in (None, counting(1, spec.length)):
        raise Unsupported("rotary tables are recorded for one row that counts from the start")
    row, tables = spec.tokens[0], dict[int, Tables]()
    before = [trusted.subject.inputs.row] if after_longer else []
    for _, stop in expected.chunk_bounds(spec):
        before.append(row[:stop])
        tables[stop] = tables_of(trusted, *before)
    model = trusted.subject.model
    return schedule.scheduled_logits(
        trusted,
        spec,
        around=lambda start, stop: replaced_tables(model, tables[stop], start, stop),
    )


def _left_behind(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """One forward under the table that a longer call before it has left."""
    row = spec.tokens[0]
    tables = tables_of(trusted, trusted.subject.inputs.row, row)
    with replaced_tables(trusted.subject.model, tables, 0, len(row)):
        return trusted.logits(spec)


def _from_prefixes(columns: tuple[int, ...], trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Each column from the forward that ends with it."""
    logits_BTV = trusted.logits(spec).clone()
    for column in columns:
        prefix = ForwardSpec(tuple(row[: column + 1] for row in spec.tokens))
        logits_BTV[:, column] = trusted.logits(prefix)[:, -1]
    return logits_BTV


FAULT = Fault(name="rope-scale-switch", inject=inject, hypotheses={240: _by_chunk, 250: _by_tables})
