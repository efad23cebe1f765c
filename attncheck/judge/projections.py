"""Which projection a layer's queries and keys come from, and how they were rotated and scaled on
the way to the kernel.

Found by effect. A rotation keeps the length of every head's vector, so the lengths over the tokens
are a fingerprint: a head that has the lengths of a block of some projection's output, up to one
factor, is that block.

Axes: B batch, H heads, N blocks of D channels, T positions, D head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.rope import CosSin, Pairing, rotate
from attncheck.numerics.divergence import max_abs, max_abs_diff

ROUNDINGS = 64
COARSE = 1e-3
"""A relative error of lengths at which one projection, or one head, looks like another."""
FEWEST = 4
TINY = torch.finfo(torch.float64).tiny
PAIRINGS: tuple[Pairing, ...] = ("half", "pairs")


def resolution(dtype: torch.dtype) -> float:
    """The relative error up to which lengths and rotations count as the same in a dtype."""
    return ROUNDINGS * torch.finfo(dtype).eps


@final
@dataclass(frozen=True, kw_only=True)
class ProjectionSource:
    """states_BHTD before rotation, in float64, the stage that put them out, and the one factor
    between them and what the kernel got.

    `pairing` is how the rotary tables rotate them exactly into that: "none" when they are not
    rotated, None when it is not known. `rotations` counts how often. `reading` and `blocks` say
    which reading of the stage, and which block of it each head is.
    """

    stage: str
    states_BHTD: Tensor
    factor: float
    pairing: Pairing | str | None = None
    rotations: int = 1
    reading: int = 0
    blocks: tuple[int, ...] = ()


def blocks_of(stage: Tensor, batch: int, length: int, width: int) -> list[Tensor]:
    """The ways to read a module's output as blocks_BNTD."""
    found = []
    if stage.ndim == 4 and stage.shape[0] == batch and stage.shape[-1] == width:
        if stage.shape[1] == length:
            found.append(stage.transpose(1, 2))
        if stage.shape[2] == length:
            found.append(stage)
    flat = stage.flatten(2) if stage.ndim > 3 else stage
    if flat.ndim == 3 and flat.shape[:2] == (batch, length) and flat.shape[-1] % width == 0:
        found.append(flat.reshape(batch, length, -1, width).transpose(1, 2))
    return found


def source_of(
    passed_BHTD: Tensor, stages: dict[str, Tensor], tables: CosSin | None
) -> ProjectionSource | None:
    """Where queries or keys come from, latest stage first; None where no stage fits."""
    batch, _, length, width = passed_BHTD.shape
    if batch * length < FEWEST:
        return None
    slack, passed = resolution(passed_BHTD.dtype), passed_BHTD.double()
    for name, stage in reversed(stages.items()):
        for reading, blocks in enumerate(blocks_of(stage, batch, length, width)):
            blocks_BNTD = blocks.double()
            match = matched(passed, blocks_BNTD, slack)
            if match is not None:
                best_H, factor = match
                source = ProjectionSource(
                    stage=name,
                    states_BHTD=blocks_BNTD[:, best_H],
                    factor=factor,
                    reading=reading,
                    blocks=tuple(best_H.tolist()),
                )
                return _with_rotation(source, passed, tables, slack)
    return None


def matched(passed_BHTD: Tensor, blocks_BNTD: Tensor, slack: float) -> tuple[Tensor, float] | None:
    """The block of each head and the factor on it, where every head has one and the factor is the
    same for all.
    """
    passed_HX = passed_BHTD.norm(dim=-1).transpose(0, 1).flatten(1)
    blocks_NX = blocks_BNTD.norm(dim=-1).transpose(0, 1).flatten(1)
    # a head is a block if the ratio of their lengths is the same at every token
    ratio_HNX = passed_HX[:, None] / blocks_NX.clamp_min(TINY)
    spread_HN = (ratio_HNX.amax(-1) - ratio_HNX.amin(-1)) / ratio_HNX.mean(-1).clamp_min(TINY)
    # a head of zeros is a block of zeros, and no other head is
    blank_H, blank_N = ~passed_HX.any(-1), ~blocks_NX.any(-1)
    spread_HN = spread_HN.masked_fill(blank_H[:, None] != blank_N, math.inf)
    best_H = spread_HN.argmin(-1)
    heads = torch.arange(len(best_H))
    if bool(blank_H.all()) or not bool((spread_HN[heads, best_H] <= slack).all()):
        return None
    factors_H = ratio_HNX[heads, best_H].mean(-1)[~blank_H]
    factor = float(factors_H.mean())
    if not factor > 0 or max_abs_diff(factors_H / factor, 1) > slack:
        return None
    return best_H, 1.0 if abs(factor - 1) <= slack else factor


def _with_rotation(
    source: ProjectionSource, passed_BHTD: Tensor, tables: CosSin | None, slack: float
) -> ProjectionSource:
    """The source with the rotation that takes its states exactly to what the kernel got."""
    limit = slack * max_abs(passed_BHTD)

    def fits(candidate_BHTD: Tensor) -> bool:
        return max_abs_diff(candidate_BHTD, passed_BHTD) <= limit

    if fits(source.states_BHTD * source.factor):
        return replace(source, pairing="none", rotations=0)
    for pairing in PAIRINGS if tables is not None else ():
        # tables may carry a gain (YaRN), so the rotation is compared up to one factor
        once_BHTD = rotated_or_none(source.states_BHTD, tables, pairing)
        if once_BHTD is None:
            continue
        gain = float(passed_BHTD.norm() / once_BHTD.norm())
        if fits(once_BHTD * gain):
            return replace(source, states_BHTD=once_BHTD, factor=gain, pairing=pairing)
        twice_BHTD = rotated_or_none(once_BHTD, tables, pairing)
        if twice_BHTD is not None and fits(
            twice_BHTD * float(passed_BHTD.norm() / twice_BHTD.norm())
        ):
            return replace(source, states_BHTD=once_BHTD, pairing=pairing, rotations=2)
    return source


def rotated_or_none(
    states_BHTD: Tensor, tables: CosSin | None, pairing: Pairing | str
) -> Tensor | None:
    """States rotated by the tables; None where the tables have another form than (B, T, R)."""
    try:
        cos, sin = (table.double() for table in tables or ())
        return rotate(states_BHTD, cos, sin, pairing)  # type: ignore[arg-type]
    except (ValueError, RuntimeError):
        return None
