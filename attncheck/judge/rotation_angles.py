"""By what angle each position rotates each pair of channels: read off what a projection returned
and what the kernel got.

Which channels are a pair is found by fit: halves or neighbours, on either side of the rotation,
over all channels or a part of them. A pair fits when one complex number for each position, the same
for every head and of one size at all positions, takes the projection's output to the kernel's
input.

Axes: B batch, H heads, N blocks, T positions, D head width, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.attention.rope import Pairing
from attncheck.judge.projections import TINY, blocks_of, matched, resolution
from attncheck.numerics.divergence import beyond_at, max_abs, max_abs_diff

TABLE_ROUNDING = resolution(torch.float32)
"""Lengths that differ by less belong to one projection: tables may have been stored in float32."""

Layout = tuple[int, int, Pairing, Pairing]
"""First channel, number of channels, and the pairing before and after the rotation."""

BEFORE_AND_AFTER: tuple[tuple[Pairing, Pairing], ...] = (
    ("half", "half"),
    ("pairs", "pairs"),
    ("pairs", "half"),
    ("half", "pairs"),
)


@final
@dataclass(frozen=True, kw_only=True)
class ObservedRotation:
    """factor_BTP: the complex number that each pair is multiplied by. No pairs where the channels
    pass unchanged.

    `noise_P` is how far, in radians, rounding carries it; `stage` is where the channels come from.
    """

    stage: str
    factor_BTP: Tensor
    noise_P: Tensor
    layout: Layout | None = None

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return self.factor_BTP.shape[-1]

    @property
    def gain(self) -> float:
        """The factor on the length of the rotated channels."""
        return float(self.factor_BTP.abs().mean()) if self.pairs else 1.0

    @property
    def inv_freq_P(self) -> Tensor:
        """Radians per position: the mean step from one to the next, each below half a turn."""
        return (self.factor_BTP[:, 1:] * self.factor_BTP[:, :-1].conj()).angle().mean((0, 1))


def observed_rotation(
    passed_BHTD: Tensor, stages: dict[str, Tensor], width: int, hint: Layout | None
) -> ObservedRotation | None:
    """How queries or keys were rotated since the latest stage that shows it; None where they come
    from no stage.

    `width` is the expected rotary width, `hint` the layout of another layer; both are only tried
    first.
    """
    # stages may hold the states both before and after the rotation: the former shows it
    still: ObservedRotation | None = None
    for name, given_BHTD in _candidates(passed_BHTD, stages, width):
        found = _fitted(name, given_BHTD, passed_BHTD, width, hint)
        if found is not None and found.pairs:
            return found
        still = still or found
    return still


def rotation_between(given_BHTD: Tensor, passed_BHTD: Tensor) -> ObservedRotation | None:
    """How each head of one tensor is rotated into the same head of another; None where it is not
    only rotated.
    """
    return _fitted("", given_BHTD.double(), passed_BHTD, 0, None)


def _candidates(
    passed_BHTD: Tensor, stages: dict[str, Tensor], width: int
) -> Iterator[tuple[str, Tensor]]:
    """Outputs with the lengths of the kernel's input, latest first, in float64.

    A scheme may multiply the channels that it rotates: then the lengths of those channels alone, or
    of the others, still agree up to one factor.
    """
    batch, _, length, whole = passed_BHTD.shape
    parts = [slice(None)]
    if 0 < width < whole:
        parts += [slice(width), slice(whole - width, None)]
    passed = passed_BHTD.double()
    for name, stage in reversed(stages.items()):
        for blocks_BNTD in blocks_of(stage, batch, length, whole):
            blocks = blocks_BNTD.double()
            matches = (
                matched(passed[..., part], blocks[..., part], TABLE_ROUNDING) for part in parts
            )
            heads_H = next((each[0] for each in matches if each is not None), None)
            if heads_H is not None:
                yield name, blocks[:, heads_H]


def shared_part(
    passed_BHTD: Tensor, stages: dict[str, Tensor], layout: Layout
) -> ObservedRotation | None:
    """How the channels that queries rotate are rotated in keys whose heads share exactly those, at
    the end of a stage's output (latent attention).
    """
    first, count = layout[:2]
    part_BHTD = passed_BHTD[..., first : first + count]
    if not torch.equal(part_BHTD[:, :1].expand_as(part_BHTD), part_BHTD):
        return None
    ends = {
        name: stage[..., -count:]
        for name, stage in stages.items()
        if stage.ndim == 3 and stage.shape[-1] >= count
    }
    return observed_rotation(part_BHTD[:, :1], ends, count, None)


def _fitted(
    stage: str, given_BHTD: Tensor, passed_BHTD: Tensor, width: int, hint: Layout | None
) -> ObservedRotation | None:
    passed = passed_BHTD.double()
    limit = resolution(passed_BHTD.dtype) * max_abs(passed)
    changed_D = _changed(given_BHTD, passed, limit)
    if not bool(changed_D.any()):
        none = torch.zeros(passed.shape[0], passed.shape[2], 0, dtype=torch.complex128)
        noise_P = torch.zeros(0, dtype=torch.float64)
        return ObservedRotation(stage=stage, factor_BTP=none, noise_P=noise_P)
    for layout in _layouts(changed_D, width, hint):
        factor_BTP = _factors(given_BHTD, passed, layout, limit)
        if factor_BTP is not None:
            size_P = _paired(given_BHTD, layout, layout[2]).abs().square().mean((0, 1, 2)).sqrt()
            noise_P = limit / size_P.clamp_min(limit)
            return ObservedRotation(
                stage=stage, factor_BTP=factor_BTP.cpu(), noise_P=noise_P.cpu(), layout=layout
            )
    return None


def _changed(given_BHTD: Tensor, passed_BHTD: Tensor, limit: float) -> Tensor:
    """Which channels are not the projection's output times one number."""
    energy_D = given_BHTD.square().sum((0, 1, 2)).clamp_min(TINY)
    factor_D = (given_BHTD * passed_BHTD).sum((0, 1, 2)) / energy_D
    return beyond_at(passed_BHTD, given_BHTD * factor_D, limit, (0, 1, 2))


def _layouts(changed_D: Tensor, width: int, hint: Layout | None) -> Iterator[Layout]:
    """Every layout that covers the changed channels, the likeliest first."""
    if hint is not None:
        yield hint
    places = changed_D.nonzero().flatten()
    total, first, last = len(changed_D), int(places[0]), int(places[-1]) + 1
    spans = [
        (0, width),
        (total - width, width),
        (0, total),
        (0, last),
        (first, last - first),
        (first, total - first),
    ]
    for start, count in dict.fromkeys(spans):
        stop = start + count
        covers = start <= first and last <= stop
        if 0 <= start < stop <= total and count % 2 == 0 and covers:
            for before, after in BEFORE_AND_AFTER:
                yield start, count, before, after


def _paired(states_BHTD: Tensor, layout: Layout, pairing: Pairing) -> Tensor:
    """(B, H, T, P) complex numbers: the pairs of channels."""
    first, count = layout[:2]
    part = states_BHTD[..., first : first + count]
    left, right = part.chunk(2, -1) if pairing == "half" else (part[..., ::2], part[..., 1::2])
    return torch.complex(left.contiguous(), right.contiguous())


def _factors(
    given_BHTD: Tensor, passed_BHTD: Tensor, layout: Layout, limit: float
) -> Tensor | None:
    """factor_BTP where this layout fits and the other channels are left alone, otherwise None."""
    first, count, before, after = layout
    if first + count > given_BHTD.shape[-1]:
        return None
    given, passed = _paired(given_BHTD, layout, before), _paired(passed_BHTD, layout, after)
    # least squares over the heads: a rotation is the same complex factor for all of them
    energy_BTP = given.abs().square().sum(1)
    factor_BTP = (passed * given.conj()).sum(1) / energy_BTP.clamp_min(TINY)
    if max_abs_diff(passed, factor_BTP[:, None] * given) > limit:
        return None
    size_BTP = factor_BTP.abs()
    # one size at all positions, or it scales with the position, which no rotation does
    slack_BTP = TABLE_ROUNDING + 2 * limit / energy_BTP.sqrt().clamp_min(limit)
    if not bool(((size_BTP / size_BTP.mean() - 1).abs() <= slack_BTP).all()):
        return None
    # channels outside the layout must be passed on, or a wider layout is meant
    outside_D = _changed(given_BHTD, passed_BHTD, limit)
    outside_D[first : first + count] = False
    return None if bool(outside_D.any()) else factor_BTP
