"""By what angle each position turns each pair of channels: read off what a projection gave and what
the kernel was handed.

Which channels are a pair is found by fit: halves against halves or neighbours, on either side of
the turn, over all channels or a part of them. A pair fits when one complex number for each
position, the same for every head and of one size at all positions, takes what was given to what was
handed.

Axes: B batch, H heads, N blocks, T positions, D head width, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.judge.projections import ROUNDINGS, blocks_of, matched
from attncheck.numerics.divergence import beyond, beyond_at, max_abs

COARSEST = ROUNDINGS * torch.finfo(torch.float32).eps
"""Lengths that differ by less are those of one projection: tables may have been stored in float32.
"""

Layout = tuple[int, int, str, str]
"""First channel, number of channels, and the pairing of what was given and of what was handed."""


@final
@dataclass(frozen=True, kw_only=True)
class Turning:
    """turn_BTP: the complex number that each pair is multiplied by. No pairs where the channels are
    handed as they were.

    `noise_P` is how far, in radians, rounding carries it; `stage` is where the channels come from.
    """

    stage: str
    turn_BTP: Tensor
    noise_P: Tensor
    layout: Layout | None = None

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return self.turn_BTP.shape[-1]

    @property
    def gain(self) -> float:
        """What the turned channels are multiplied by."""
        return float(self.turn_BTP.abs().mean()) if self.pairs else 1.0

    @property
    def steps_P(self) -> Tensor:
        """Radians for each position: the mean step from one to the next, none of which is as long
        as half a round.
        """
        return (self.turn_BTP[:, 1:] * self.turn_BTP[:, :-1].conj()).angle().mean((0, 1))


def turning_of(
    handed_BHTD: Tensor, stages: dict[str, Tensor], width: int, hint: Layout | None
) -> Turning | None:
    """How queries or keys were turned since the latest stage that shows it; None where no stage is
    what they come from.

    `width` is the rotary width that is expected, `hint` the layout of another layer; both are only
    tried first. A part of the channels that all heads share is looked for at the end of a stage's
    output, where the heads themselves come from none.
    """
    still: Turning | None = None
    for name, given_BHTD in _candidates(handed_BHTD, stages, width):
        found = _fitted(name, given_BHTD, handed_BHTD, width, hint)
        if found is not None and found.pairs:
            return found
        still = still or found
    return still


def _candidates(
    handed_BHTD: Tensor, stages: dict[str, Tensor], width: int
) -> Iterator[tuple[str, Tensor]]:
    """Outputs that have the lengths of what was handed, latest first, in float64.

    A scheme may multiply the channels that it turns: then the lengths of these alone are the same
    but for one factor.
    """
    batch, _, length, whole = handed_BHTD.shape
    parts = [slice(None)] + (
        [slice(width), slice(whole - width, None)] if 0 < width < whole else []
    )
    for name, stage in reversed(stages.items()):
        for blocks_BNTD in blocks_of(stage, batch, length, whole):
            handed, blocks = handed_BHTD.double(), blocks_BNTD.double()
            found = (matched(handed[..., part], blocks[..., part], COARSEST) for part in parts)
            heads_H = next((each[0] for each in found if each is not None), None)
            if heads_H is not None:
                yield name, blocks[:, heads_H]


def shared_part(
    handed_BHTD: Tensor, stages: dict[str, Tensor], layout: Layout, hint: Layout | None
) -> Turning | None:
    """How the channels that queries turn are turned in keys whose other channels come from
    somewhere else.
    """
    first, count = layout[:2]
    part_B1TD = handed_BHTD[:, :1, :, first : first + count]
    if not torch.equal(
        part_B1TD.expand_as(handed_BHTD[..., first : first + count]),
        handed_BHTD[..., first : first + count],
    ):
        return None
    ends = {
        name: stage[..., -count:]
        for name, stage in stages.items()
        if stage.ndim == 3 and stage.shape[-1] >= count
    }
    return turning_of(part_B1TD, ends, count, hint)


def _fitted(
    stage: str, given_BHTD: Tensor, handed_BHTD: Tensor, width: int, hint: Layout | None
) -> Turning | None:
    handed, eps = handed_BHTD.double(), torch.finfo(handed_BHTD.dtype).eps
    limit = ROUNDINGS * eps * max_abs(handed)
    moving_D = _moved(given_BHTD, handed, limit)
    if not bool(moving_D.any()):
        none = torch.zeros(handed.shape[0], handed.shape[2], 0, dtype=torch.complex128)
        return Turning(stage=stage, turn_BTP=none, noise_P=torch.zeros(0, dtype=torch.float64))
    for layout in _layouts(moving_D, width, hint):
        turn_BTP = _turn(given_BHTD, handed, layout, limit)
        if turn_BTP is not None:
            size_P = _paired(given_BHTD, layout, layout[2]).abs().square().mean((0, 1, 2)).sqrt()
            noise_P = limit / size_P.clamp_min(limit)
            return Turning(
                stage=stage, turn_BTP=turn_BTP.cpu(), noise_P=noise_P.cpu(), layout=layout
            )
    return None


def _moved(given_BHTD: Tensor, handed_BHTD: Tensor, limit: float) -> Tensor:
    """Which channels are not what was given times one number."""
    tiny = torch.finfo(torch.float64).tiny
    factor_D = (given_BHTD * handed_BHTD).sum((0, 1, 2)) / given_BHTD.square().sum(
        (0, 1, 2)
    ).clamp_min(tiny)
    return beyond_at(handed_BHTD, given_BHTD * factor_D, limit, (0, 1, 2))


def _layouts(moving_D: Tensor, width: int, hint: Layout | None) -> Iterator[Layout]:
    """The likeliest first."""
    if hint is not None:
        yield hint
    places = moving_D.nonzero().flatten()
    total, first, last = len(moving_D), int(places[0]), int(places[-1]) + 1
    wanted = [
        (0, width),
        (total - width, width),
        (0, total),
        (0, last),
        (first, last - first),
        (first, total - first),
    ]
    for start, count in dict.fromkeys(wanted):
        if (
            start >= 0
            and count > 0
            and count % 2 == 0
            and start + count <= total
            and start <= first
            and last <= start + count
        ):
            for pairing in (
                ("half", "half"),
                ("pairs", "pairs"),
                ("pairs", "half"),
                ("half", "pairs"),
            ):
                yield start, count, *pairing


def _paired(states_BHTD: Tensor, layout: Layout, pairing: str) -> Tensor:
    """(B, H, T, P) complex numbers: the pairs of channels."""
    first, count = layout[:2]
    part = states_BHTD[..., first : first + count]
    left, right = part.chunk(2, -1) if pairing == "half" else (part[..., ::2], part[..., 1::2])
    return torch.complex(left.contiguous(), right.contiguous())


def _turn(given_BHTD: Tensor, handed_BHTD: Tensor, layout: Layout, limit: float) -> Tensor | None:
    """turn_BTP where this layout fits, and the other channels are left as they were, else None."""
    first, count = layout[:2]
    if first + count > given_BHTD.shape[-1]:
        return None
    given, handed = (
        _paired(each, layout, side)
        for each, side in zip((given_BHTD, handed_BHTD), layout[2:], strict=True)
    )
    energy_BTP = given.abs().square().sum(1)
    turn_BTP = (handed * given.conj()).sum(1) / energy_BTP.clamp_min(
        torch.finfo(torch.float64).tiny
    )
    if beyond(handed, turn_BTP[:, None] * given, limit):
        return None
    size_BTP = turn_BTP.abs()
    slack_BTP = COARSEST + 2 * limit / energy_BTP.sqrt().clamp_min(limit)
    if not bool(((size_BTP / size_BTP.mean() - 1).abs() <= slack_BTP).all()):
        return None
    rest_D = torch.ones(given_BHTD.shape[-1], dtype=torch.bool, device=given_BHTD.device)
    rest_D[first : first + count] = False
    return turn_BTP if not bool(_moved(given_BHTD, handed_BHTD, limit)[rest_D].any()) else None
