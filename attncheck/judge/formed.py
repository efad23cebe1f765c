"""Whether later calls form their queries and keys as one forward does: from the same projection,
normed, scaled and turned.

Axes: B batch, H heads, T new positions, S key positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.judge.call_position import Standing
from attncheck.judge.layers import Attended
from attncheck.judge.projections import ROUNDINGS, Source, blocks_of, turned_or_none
from attncheck.numerics.divergence import beyond, max_abs


@final
@dataclass(frozen=True)
class Formed:
    """states_BHTD as one forward would form them; `words` say how the kernel's differ, empty where
    they do not.

    None where it cannot be told what they should be.
    """

    states_BHTD: Tensor | None
    words: str = ""


def formed(known: Source, handed_BHTD: Tensor, layer: Attended, what: str) -> Formed:
    """Hold the new queries or keys of a call against the way in which one forward was seen to form
    them.
    """
    handed = handed_BHTD.double()
    slack = ROUNDINGS * torch.finfo(handed_BHTD.dtype).eps * max_abs(handed)
    states = _states(known, layer.stages.get(known.stage), handed)
    if states is None:
        return Formed(None, _elsewhere(known, handed, layer, slack, what))
    if known.turn is None:
        return Formed(None, _other_lengths(states, handed, slack, what, known.stage))
    wanted = (
        states
        if known.turn == "none"
        else turned_or_none(states / known.factor, layer.tables, known.turn)
    )
    if wanted is None:
        return Formed(None)
    wanted = wanted if known.turn == "none" else wanted * known.factor
    if not beyond(wanted, handed, slack):
        return Formed(wanted)
    same = not beyond(states, handed, slack)
    words = (
        f"{what} are not turned by the rotary tables"
        if same
        else f"{what} are not what `{known.stage}` gives"
    )
    return Formed(wanted, f"{words}, as they are in one forward")


def _states(known: Source, stage: Tensor | None, handed_BHTD: Tensor) -> Tensor | None:
    """What a stage gives for each head, with the factor on it and before any turn."""
    if stage is None:
        return None
    batch, _, length, width = handed_BHTD.shape
    readings = blocks_of(stage, batch, length, width)
    if known.reading >= len(readings) or readings[known.reading].shape[1] <= max(known.blocks):
        return None
    return readings[known.reading].double()[:, list(known.blocks)] * known.factor


def _other_lengths(states: Tensor, handed: Tensor, slack: float, what: str, stage: str) -> str:
    return (
        f"{what} have another length than `{stage}` gives them in one forward"
        if beyond(states.norm(dim=-1), handed.norm(dim=-1), slack)
        else ""
    )


def _elsewhere(known: Source, handed: Tensor, layer: Attended, slack: float, what: str) -> str:
    """The stage that they come from instead, where the lengths of all heads say so."""
    for name, stage in layer.stages.items():
        states = _states(known, stage, handed)
        if states is not None and not _other_lengths(states, handed, slack, what, name):
            return f"{what} come from `{name}`, in one forward from `{known.stage}`"
    return ""


def new_slots(total: int, standing: Standing) -> slice:
    """Where the keys of this call's tokens are: at its own place in a buffer, at the end of
    anything shorter.
    """
    return (
        slice(standing.before, standing.stop)
        if total >= standing.stop
        else slice(total - standing.new, total)
    )
