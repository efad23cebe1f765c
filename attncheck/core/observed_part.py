"""One measured change of what an attention layer got or gave. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

What = Literal[
    "keys",
    "values",
    "queries",
    "cells",
    "scores",
    "context",
    "hidden",
    "state",
    "logits",
    "gradient",
]
How = Literal[
    "other token",
    "other sequence",
    "other layer",
    "other head",
    "other call",
    "rotated",
    "rounded",
    "scaled",
    "reordered",
    "weighted",
    "moved",
    "zero",
    "missing",
    "twice",
    "visible",
    "empty",
    "hidden",
    "cap",
    "sinks",
    "bias",
    "dtype",
    "lost",
    "another function",
]


@final
@dataclass(frozen=True, kw_only=True)
class ObservedPart:
    """One measured change of what an attention layer got or gave.

    `layers`, `rows` (of the batch), `heads`, `slots` (tokens that keys and values belong to) and
    `positions` (of queries) say where; empty means all. `when` says in which calls: "prefill",
    "chunk" (several tokens on a cache), "step" (one token on a cache), in the order of execution;
    empty means all. `amount` is the factor, the angle in tokens, the distance to the other token or
    layer, or the number of cells; `dtype` what was rounded to. `text` says all of it in words.
    """

    what: What
    how: How
    layers: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    when: tuple[str, ...] = ()
    amount: float | None = None
    dtype: str = ""
    text: str = ""
