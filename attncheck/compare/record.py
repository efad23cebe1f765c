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
from attncheck.numerics.module_outputs import Event, Trace, tracing
from attncheck.numerics.reorder import Reorder
from attncheck.run.session import environment

SHARE = 0.5
PLAIN, CHUNKED, PADDED = "one forward", "in chunks on a cache", "left-padded batch"
SHORTER = 3
"""How many tokens the second row of the padded batch is shorter."""


@final
@dataclass(frozen=True)
class Print:
    """One module's fingerprint over a way of asking, with what rounding alone does to it.

    `width` is how many numbers a position had, where sharding may have changed that: a part
    compares with nothing.
    """

    event: Event
    print_BTK: Tensor
    floor: float
    width: int = 0


@final
@dataclass(frozen=True)
class Way:
    """One way of asking: its logits where tokens are real, how far rounding carries them, every
    module's fingerprint.
    """

    name: str
    logits_BTV: Tensor
    real_BT: Tensor
    budget: float
    prints: tuple[Print, ...]


@final
@dataclass(frozen=True)
class Recording:
    """A whole run. `weights` holds a few sums of every tensor; `meta` says what ran where, as text."""

    name: str
    rows: Tokens
    pad: int
    dtype: str
    ways: tuple[Way, ...]
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
    for name, spec in _asked(subject, rows, filler):
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


def _asked(subject: Subject, rows: Tokens, pad: int) -> Iterator[tuple[str, ForwardSpec]]:
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


def _way(subject: Subject, name: str, spec: ForwardSpec) -> Way:
    modules = {name: module for name, module in subject.model.named_modules() if name}

    def run() -> Tensor:
        return subject.logits(spec)

    logits_BTV = run()
    with tracing(modules) as usual:
        subject.passes.replay(spec)
    with tracing(modules) as reordered, Reorder(SHARE):
        subject.passes.replay(spec)
    shape = (len(spec.tokens), spec.length)
    prints = [_print(event, shape, usual, reordered) for event in usual.prints]
    if subject.settings.tp is None:
        prints = [replace(each, width=0) for each in prints if each is not None]
    rows = getattr(spec.mask, "rows", None)
    real_BT = torch.tensor(rows, dtype=torch.bool) if rows else torch.ones(shape, dtype=torch.bool)
    return Way(
        name,
        logits_BTV.cpu(),
        real_BT,
        subject.budget.value,
        tuple(each for each in prints if each is not None),
    )


def _print(event: Event, shape: tuple[int, int], usual: Trace, reordered: Trace) -> Print | None:
    print_BTK, moved_BTK = usual.print_BTK(event, shape), reordered.print_BTK(event, shape)
    if print_BTK is None or moved_BTK is None:
        return None
    return Print(
        event,
        print_BTK,
        float((print_BTK - moved_BTK).abs().nan_to_num(0.0).max()),
        usual.widths[event],
    )


def described(recording: Recording) -> str:
    """What ran, in a line."""
    meta: dict[str, Any] = recording.meta
    return f"{recording.name} ({recording.dtype}, {meta.get('attn')}, transformers {meta.get('transformers')})"
