"""Two sets of weights, tensor by tensor: rows in another order, an adapter's rank, or noise.

Axes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import final

import torch
from torch import Tensor, nn

MOST = 1024
"""Ranks are computed for matrices up to this size."""
FEW = 64


@final
@dataclass(frozen=True)
class WeightDifference:
    """One tensor that differs. `words` says how; `kind` is "order", "rank", "noise" or "other"."""

    name: str
    kind: str
    words: str


def differing(left: nn.Module, right: nn.Module, names: Sequence[str]) -> list[WeightDifference]:
    """How each of some parameters differs between two models of one form."""
    mine, theirs = dict(left.named_parameters()), dict(right.named_parameters())
    return [
        difference(name, mine[name].detach().cpu(), theirs[name].detach().cpu())
        for name in names[:FEW]
    ]


def difference(name: str, left: Tensor, right: Tensor) -> WeightDifference:
    """How one tensor differs.

    A low rank is an adapter that one side has and the other lacks; a full rank and a small size is
    rounding to a grid.
    """
    if left.shape != right.shape:
        shapes = f"{tuple(left.shape)} against {tuple(right.shape)}"
        return WeightDifference(name, "other", shapes)
    left, right = left.double(), right.double()
    delta = right - left
    relative = float(delta.norm() / left.norm().clamp_min(1e-30))
    amount = f"{relative:.1%} of its size"
    order = _order(left, right)
    if order is not None:
        words = f"the same rows in another order{_named(order)}"
        return WeightDifference(name, "order", words)
    if left.ndim != 2 or max(left.shape) > MOST:
        return WeightDifference(name, "other", f"differs by {amount}")
    sizes = torch.linalg.svdvals(delta)
    rank = int((sizes > 1e-6 * sizes[0]).sum())
    if rank <= len(sizes) // 4:
        words = f"differs by a matrix of rank {rank}, {amount}"
        return WeightDifference(name, "rank", words)
    kind = "noise" if relative < 0.3 else "other"
    return WeightDifference(name, kind, f"differs by {amount} in every direction")


def _order(left: Tensor, right: Tensor) -> Tensor | None:
    """order_R with right[i] = left[order_R[i]]; None where the rows are not the same ones."""
    flat_left, flat_right = left.reshape(left.shape[0], -1), right.reshape(right.shape[0], -1)
    weights_C = torch.cos(torch.arange(flat_left.shape[1], dtype=torch.float64) * 1.7)
    marks_left, marks_right = flat_left @ weights_C, flat_right @ weights_C
    sorted_left, sorted_right = marks_left.sort(), marks_right.sort()
    order_R = torch.empty_like(sorted_left.indices)
    order_R[sorted_right.indices] = sorted_left.indices
    return order_R if torch.equal(flat_left[order_R], flat_right) else None


def _named(order_R: Tensor) -> str:
    """The rotary re-ordering that gives this order of the rows, where one does."""
    for words, candidate_R in _reorderings(len(order_R)):
        if torch.equal(order_R, candidate_R):
            return f": {words}"
    return ""


def _reorderings(rows: int) -> Iterator[tuple[str, Tensor]]:
    counts = [heads for heads in range(1, rows // 2 + 1) if rows % (2 * heads) == 0]
    plain = torch.arange(rows)
    for heads in counts:
        yield f"halves of {heads} heads interleaved", interleaved(plain, heads)
        yield f"pairs of {heads} heads taken apart", taken_apart(plain, heads)
    for first, second in permutations(counts, 2):
        words = f"interleaved for {first} heads and taken apart for {second}"
        order_R = taken_apart(interleaved(plain, first), second)
        yield f"{words}: the number of heads was wrong", order_R


def interleaved(rows_R: Tensor, heads: int) -> Tensor:
    """The two halves of each head as pairs: what a converter does for engines that rotate
    neighbours.
    """
    return rows_R.view(heads, 2, -1).transpose(1, 2).reshape(-1)


def taken_apart(rows_R: Tensor, heads: int) -> Tensor:
    """The inverse of `interleaved`."""
    return rows_R.view(heads, -1, 2).transpose(1, 2).reshape(-1)


def summary(found: Sequence[WeightDifference], total: int) -> str:
    """What differs, in a sentence."""
    ends = sorted({_end(each.name) for each in found})
    example = found[0]
    verb = "" if example.words.startswith("differs") else "holds "
    return (
        f"{len(found)} of {total} weights differ, all named {', '.join(ends[:4])}: "
        f"{example.name} {verb}{example.words}"
    )


def _end(name: str) -> str:
    """The part of a weight's name that says what it is in its layer."""
    parts = [part for part in name.split(".") if part not in ("weight", "bias")]
    return f"`{parts[-1]}`" if parts else name
