"""A run written down: the logits of a few ways of asking, what every module put out, and what the
weights are.

What is kept of a module is a fingerprint of a few numbers for each position, so that a recording of
a large model stays small.

Axes: B batch, T positions, V vocabulary, K numbers kept for each position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.errors import TargetError, Unsupported
from attncheck.model.digest import digests
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.padding import Padded, pad_id
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.module_outputs import ModuleOutputs, outputs_with_floors
from attncheck.run.session import environment

PLAIN, CHUNKED, PADDED = "one forward", "in chunks on a cache", "left-padded batch"
SHORTER = 3
"""How many tokens the second row of the padded batch is shorter."""


@final
@dataclass(frozen=True)
class RecordedForward:
    """One way of asking: its logits where tokens are real, how far rounding carries them, every
    module's fingerprint.
    """

    name: str
    logits_BTV: Tensor
    real_BT: Tensor
    budget: float
    outputs: ModuleOutputs


@final
@dataclass(frozen=True)
class Recording:
    """A whole run. `weights` holds a few sums of every tensor; `meta` says what ran where, as text."""

    name: str
    rows: Tokens
    pad: int
    dtype: str
    ways: tuple[RecordedForward, ...]
    weights: dict[str, Tensor]
    meta: dict[str, str] = field(default_factory=dict)


def record(subject: Subject, rows: Tokens = (), pad: int | None = None) -> Recording:
    """Ask one model in every way that it takes, about `rows` (its own material when left out).

    Raises:
        TargetError: the rows hold tokens that this model has not.
    """
    inputs = subject.inputs
    rows = rows or (inputs.row, inputs.other(inputs.row, salt=31)[SHORTER:])
    if max(map(max, rows)) >= subject.facts.vocab:
        raise TargetError(
            f"{subject.name}: token {max(map(max, rows))} is outside its vocabulary of {subject.facts.vocab}"
        )
    filler = pad_id(subject) if pad is None else pad
    ways = []
    for name, spec in _forwards(subject, rows, filler):
        try:
            ways.append(_way(subject, name, spec))
        except (Unsupported, *REFUSALS):
            continue
    return Recording(
        name=subject.name,
        rows=rows,
        pad=filler,
        dtype=subject.dtype_name,
        ways=tuple(ways),
        weights=digests(subject.model),
        meta={
            **{key: str(value) for key, value in environment().items()},
            "attn": str(subject.attn),
            "dtype": subject.dtype_name,
        },
    )


def _forwards(subject: Subject, rows: Tokens, pad: int) -> Iterator[tuple[str, ForwardSpec]]:
    row = rows[0]
    third = max(1, len(row) // 3)
    yield PLAIN, ForwardSpec((row,))
    if subject.can.steps:
        chunks = (
            (third, 1, len(row) - third - 1)
            if subject.can.cache and len(row) > third + 1
            else (len(row) - 1, 1)
        )
        yield CHUNKED, ForwardSpec((row,), chunks=chunks)
    if len(rows) > 1 and subject.can.reads_mask and subject.can.takes_positions:
        batch = Padded(rows=rows, length=max(map(len, rows)) + 1, pad=pad, inputs=subject.inputs)
        yield PADDED, batch.spec("left", explicit=True)


def _way(subject: Subject, name: str, spec: ForwardSpec) -> RecordedForward:
    modules = {name: module for name, module in subject.model.named_modules() if name}
    shape = (len(spec.tokens), spec.length)
    logits_BTV = subject.logits(spec)
    outputs = outputs_with_floors(modules, lambda: subject.passes.replay(spec), shape)
    if subject.settings.tp is None:
        outputs = {event: replace(each, width=0) for event, each in outputs.items()}
    rows = getattr(spec.mask, "rows", None)
    real_BT = torch.tensor(rows, dtype=torch.bool) if rows else torch.ones(shape, dtype=torch.bool)
    return RecordedForward(name, logits_BTV.cpu(), real_BT, subject.budget.value, outputs)


def described(recording: Recording) -> str:
    """What ran, in a line."""
    meta: dict[str, Any] = recording.meta
    return f"{recording.name} ({recording.dtype}, {meta.get('attn')}, transformers {meta.get('transformers')})"
