"""What it is
    With `logits_to_keep` the wrong positions are returned.

How it looks
    generate() is wrong while a full forward is right; scores belong to another token.

Where it comes from
    Slices from the wrong end, an index tensor taken for a number, 0 that should mean all.

What to change
    Keep the last n positions: `slice(-n, None)`, everything for 0, the given indices for a tensor.

Axes: B batch, T positions of this call, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject, Unsupported
from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Injected,
    Trusted,
    WrongForward,
    expected,
    injection,
)
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.provenance import Provenance
from attncheck.model.signature import takes_argument
from attncheck.model.subject import Subject

KEEP = "logits_to_keep"
Column = Callable[[int, int], int]
"""The column that is kept in place of a right one, given the first that its forward could keep."""


def inject(subject: Subject) -> Injected:
    """Keep the logits of one position too early."""
    if not takes_argument(subject.model, KEEP):
        raise CannotInject(f"forward takes no `{KEEP}`")

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        kept, ids_BT = call.get(KEEP), call.get(subject.forward_adapter.ids_name)
        if not isinstance(kept, int) or kept < 1 or not isinstance(ids_BT, Tensor):
            return call
        length = ids_BT.shape[1]
        if length <= kept:
            return call
        return {**call, KEEP: torch.arange(length - kept - 1, length - 1, device=ids_BT.device)}

    return injection.at_arguments(subject, edit)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.provenance is None:
        return
    for parameter, column in (("of the position before", _before), ("the first ones", _first)):
        predict = partial(_kept_elsewhere, forward.provenance, column)
        yield Hypothesis(parameter, predict=predict)


def _before(column: int, first: int) -> int:
    return column - 1


def _first(column: int, first: int) -> int:
    return first


def _kept_elsewhere(
    provenance: Provenance, kept: Column, trusted: Trusted, spec: ForwardSpec
) -> Tensor:
    if provenance.columns is None:
        raise Unsupported("every column is kept")
    logits_BTV = trusted.logits(spec)
    starts = [start for start, _ in expected.chunk_bounds(spec)]
    # Without a cache all kept columns come from one forward; else each step keeps its own.
    together = not provenance.passed and not spec.chunks
    moved_BTV = logits_BTV.clone()
    for number, column in enumerate(provenance.columns):
        start = max(each for each in starts if each <= column)
        source = kept(column, start + number * together)
        moved_BTV[:, column] = logits_BTV[:, source if source >= start else column]
    return moved_BTV


FAULT = Fault(name="logits-to-keep", inject=inject, hypotheses={110: _hypotheses})
