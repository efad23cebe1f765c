"""Where a layer's queries and keys come from: which output of its projections they are, turned by
positions and scaled.

Found by effect. A turn keeps the length of every head's vector, so the lengths over the tokens are
a fingerprint: a head that has the lengths of a block of some projection's output, up to one factor,
is that block.

Axes: B batch, H heads, N blocks of D channels, T positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.rope import Pairing, rotate
from attncheck.numerics.divergence import beyond, max_abs

ROUNDINGS = 64
"""Lengths and turns are compared within this many units in the last place of the model's dtype."""
FEWEST = 4


@final
@dataclass(frozen=True, kw_only=True)
class Source:
    """states_BHTD before positions, in float64; the stage they left; the one factor between them
    and what the kernel got.

    `turn` is how the rotary tables turn them exactly into that; "none" when they are not turned;
    None when it is not known. `turns` counts how often they were turned. `reading` and `blocks` say
    which reading of the stage, and which block of it each head is.
    """

    stage: str
    states_BHTD: Tensor
    factor: float
    turn: Pairing | str | None = None
    turns: int = 1
    reading: int = 0
    blocks: tuple[int, ...] = ()


def blocks_of(stage: Tensor, batch: int, length: int, width: int) -> list[Tensor]:
    """Readings of a module's output as blocks_BNTD."""
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
    handed_BHTD: Tensor, stages: dict[str, Tensor], tables: tuple[Tensor, Tensor] | None
) -> Source | None:
    """Where queries or keys come from, latest stage first; None where no stage has their lengths."""
    batch, _, length, width = handed_BHTD.shape
    if batch * length < FEWEST:
        return None
    slack = ROUNDINGS * torch.finfo(handed_BHTD.dtype).eps
    for name, stage in reversed(stages.items()):
        for reading, blocks_BNTD in enumerate(blocks_of(stage, batch, length, width)):
            found_H = matched(handed_BHTD.double(), blocks_BNTD.double(), slack)
            if found_H is not None:
                best_H, factor = found_H
                found = _with_turn(
                    name,
                    blocks_BNTD.double()[:, best_H],
                    factor,
                    handed_BHTD.double(),
                    tables,
                    slack,
                )
                return replace(found, reading=reading, blocks=tuple(best_H.tolist()))
    return None


def matched(handed_BHTD: Tensor, blocks_BNTD: Tensor, slack: float) -> tuple[Tensor, float] | None:
    """The block of each head and the factor on it, where every head has one and the factor is the
    same for all.
    """
    handed_HX = handed_BHTD.norm(dim=-1).transpose(0, 1).flatten(1)
    blocks_NX = blocks_BNTD.norm(dim=-1).transpose(0, 1).flatten(1)
    ratio_HNX = handed_HX[:, None] / blocks_NX.clamp_min(torch.finfo(torch.float64).tiny)
    spread_HN = (ratio_HNX.amax(-1) - ratio_HNX.amin(-1)) / ratio_HNX.mean(-1).clamp_min(
        torch.finfo(torch.float64).tiny
    )
    best_H = spread_HN.argmin(-1)
    rows = torch.arange(len(best_H))
    if not bool((spread_HN[rows, best_H] <= slack).all()):
        return None
    factors_H = ratio_HNX[rows, best_H].mean(-1)
    factor = float(factors_H.mean())
    if not factor > 0 or beyond(factors_H / factor, 1.0, slack):
        return None
    return best_H, 1.0 if abs(factor - 1) <= slack else factor


def _with_turn(
    name: str,
    states_BHTD: Tensor,
    factor: float,
    handed_BHTD: Tensor,
    tables: tuple[Tensor, Tensor] | None,
    slack: float,
) -> Source:
    limit = slack * max_abs(handed_BHTD)

    def fits(candidate_BHTD: Tensor) -> bool:
        return not beyond(candidate_BHTD, handed_BHTD, limit)

    source = Source(stage=name, states_BHTD=states_BHTD, factor=factor)
    if fits(states_BHTD * factor):
        return Source(stage=name, states_BHTD=states_BHTD, factor=factor, turn="none", turns=0)
    for turn in ("half", "pairs") if tables is not None else ():
        once_BHTD = turned_or_none(states_BHTD, tables, turn)
        if once_BHTD is None:
            continue
        gain = float(handed_BHTD.norm() / once_BHTD.norm())
        if fits(once_BHTD * gain):
            return Source(stage=name, states_BHTD=once_BHTD, factor=gain, turn=turn)
        twice_BHTD = turned_or_none(once_BHTD, tables, turn)
        if twice_BHTD is not None and fits(
            twice_BHTD * float(handed_BHTD.norm() / twice_BHTD.norm())
        ):
            return Source(stage=name, states_BHTD=once_BHTD, factor=factor, turn=turn, turns=2)
    return source


def turned_or_none(
    states_BHTD: Tensor, tables: tuple[Tensor, Tensor] | None, turn: str
) -> Tensor | None:
    """States turned by the tables; None where the tables have another form than (B, T, R): the turn
    stays unknown.
    """
    try:
        cos, sin = (table.double() for table in tables or ())
        return rotate(states_BHTD, cos, sin, turn)  # type: ignore[arg-type]
    except (ValueError, RuntimeError):
        return None
