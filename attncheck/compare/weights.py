"""Two sets of weights, tensor by tensor: which differ, and how: rows in another order, an adapter's
rank, or noise.

Axes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

MOST = 1024
"""Ranks are computed of matrices up to this size."""
FEW = 64


@final
@dataclass(frozen=True)
class WeightDifference:
    """One tensor that is not the same on both sides. `words` says how; `kind` is "order", "rank",
    "noise" or "other".
    """

    name: str
    kind: str
    relative: float
    words: str


def differing(left: nn.Module, right: nn.Module, names: Sequence[str]) -> list[WeightDifference]:
    """How each of some parameters differs between two models of one form."""
    mine, theirs = dict(left.named_parameters()), dict(right.named_parameters())
    return [
        _how(name, mine[name].detach().cpu(), theirs[name].detach().cpu()) for name in names[:FEW]
    ]


def _how(name: str, left: Tensor, right: Tensor) -> WeightDifference:
    if left.shape != right.shape:
        return WeightDifference(
            name, "other", float("inf"), f"{tuple(left.shape)} against {tuple(right.shape)}"
        )
    left, right = left.double(), right.double()
    delta = right - left
    relative = float(delta.norm() / left.norm().clamp_min(1e-30))
    order = _order(left, right)
    if order is not None:
        return WeightDifference(
            name, "order", relative, f"the same rows in another order{_named(order)}"
        )
    if left.ndim == 2 and max(left.shape) <= MOST:
        return _by_rank(name, delta, relative)
    return WeightDifference(name, "other", relative, f"differs by {relative:.1%} of its size")


def _by_rank(name: str, delta_RC: Tensor, relative: float) -> WeightDifference:
    """A low rank is an adapter that one side has and the other not; a full rank and a small size is
    rounding to a grid.
    """
    sizes = torch.linalg.svdvals(delta_RC)
    rank = int((sizes > 1e-6 * sizes[0]).sum())
    if rank <= len(sizes) // 4:
        return WeightDifference(
            name,
            "rank",
            relative,
            f"differs by a matrix of rank {rank}, {relative:.1%} of its size",
        )
    kind = "noise" if relative < 0.3 else "other"
    return WeightDifference(
        name, kind, relative, f"differs by {relative:.1%} of its size in every direction"
    )


def _order(left: Tensor, right: Tensor) -> Tensor | None:
    """order_R with right[i] = left[order_R[i]], where the rows are the same ones; None where they
    are not.
    """
    flat_left, flat_right = left.reshape(left.shape[0], -1), right.reshape(right.shape[0], -1)
    weights_C = torch.cos(torch.arange(flat_left.shape[1], dtype=torch.float64) * 1.7)
    marks_left, marks_right = flat_left @ weights_C, flat_right @ weights_C
    sorted_left, sorted_right = marks_left.sort(), marks_right.sort()
    order_R = torch.empty_like(sorted_left.indices)
    order_R[sorted_right.indices] = sorted_left.indices
    return order_R if torch.equal(flat_left[order_R], flat_right) else None


def _named(order_R: Tensor) -> str:
    """Which rotary re-ordering maps them, where one does: rows paired for some number of heads,
    unpaired for another.
    """
    rows = len(order_R)
    for heads, name in _turns(rows):
        if torch.equal(order_R, name):
            return f": {heads}"
    return ""


def _turns(rows: int) -> Iterator[tuple[str, Tensor]]:
    counts = [heads for heads in range(1, rows // 2 + 1) if rows % (2 * heads) == 0]
    plain = torch.arange(rows)
    for heads in counts:
        yield f"halves of {heads} heads interleaved", interleaved(plain, heads)
        yield f"pairs of {heads} heads taken apart", apart(plain, heads)
    for first in counts:
        for second in counts:
            if first != second:
                words = f"interleaved for {first} heads and taken apart for {second}: the number of heads was wrong"
                yield words, apart(interleaved(plain, first), second)


def interleaved(rows_R: Tensor, heads: int) -> Tensor:
    """Rows of two halves a head turned into rows of pairs: what a converter does for engines that
    rotate neighbours.
    """
    return rows_R.view(heads, 2, -1).transpose(1, 2).reshape(-1)


def apart(rows_R: Tensor, heads: int) -> Tensor:
    """The inverse of `interleaved`."""
    return rows_R.view(heads, -1, 2).transpose(1, 2).reshape(-1)


def summary(found: Sequence[WeightDifference], of: Mapping[str, object]) -> str:
    """What differs, in a sentence."""
    if not found:
        return ""
    ends = sorted({_end(each.name) for each in found})
    example = found[0]
    return f"{len(found)} of {len(of)} weights differ, all named {', '.join(ends[:4])}: {example.name} {_verb(example)}"


def _verb(example: WeightDifference) -> str:
    return example.words if example.words.startswith("differs") else f"holds {example.words}"


def _end(name: str) -> str:
    """The part of a weight's name that says what it is in its layer."""
    parts = [part for part in name.split(".") if part not in ("weight", "bias")]
    return f"`{parts[-1]}`" if parts else name
