"""The rotation that takes some states to others, measured: pairing, width, speeds, offset, gain.

Axes: B batch, H heads, T positions, D head width, P pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention import frequency_law
from attncheck.attention.frequency_law import power_speeds
from attncheck.attention.rope import Pairing
from attncheck.compare.decoder.spec import RotarySpec

MEASURED = 1e-7
"""How exactly, in radians per position, the speeds of a float32 rotation are measured."""
TABLE = 1e-6
"""A relative error that float32 tables of cosines make."""
PAIRINGS: tuple[Pairing, ...] = ("half", "pairs")


def complex_pairs(states_BHTR: Tensor, pairing: Pairing) -> Tensor:
    """The channels that rotate together as complex numbers, (B, H, T, P)."""
    if pairing == "half":
        first, second = states_BHTR.chunk(2, -1)
    else:
        first, second = states_BHTR[..., ::2], states_BHTR[..., 1::2]
    return torch.complex(first.contiguous(), second.contiguous())


def fit_rotation(before_BHTD: Tensor, after_BHTD: Tensor, slack: float = 1e-9) -> RotarySpec | None:
    """The rotation, or None where no rotation by the position explains the difference.

    The offset of the first position is that of queries and keys alike.
    """
    size = float(after_BHTD.abs().max())
    moved_D = (after_BHTD - before_BHTD).abs().amax((0, 1, 2)) > slack * size
    if not bool(moved_D.any()):
        return None
    last = int(moved_D.nonzero()[-1]) + 1
    total = before_BHTD.shape[-1]
    for width in range(last + last % 2, total + 1, 2):
        for pairing in PAIRINGS:
            found = _fitted(before_BHTD[..., :width], after_BHTD[..., :width], pairing, slack)
            if found is not None:
                return found
    return None


def fit_table(before_BHTD: Tensor, after_BHTD: Tensor) -> RotarySpec | None:
    """The rotation by a table of cosines that is kept in float32, at its base's exact speeds."""
    found = fit_rotation(before_BHTD, after_BHTD, TABLE)
    base = None if found is None else base_of(found)
    if found is None or base is None or abs(base / round(base) - 1) > 1e-4:
        return found
    return replace(found, inv_freq_P=power_speeds(float(round(base)), found.width))


def _fitted(
    before_BHTR: Tensor, after_BHTR: Tensor, pairing: Pairing, slack: float
) -> RotarySpec | None:
    before, after = (complex_pairs(each, pairing) for each in (before_BHTR, after_BHTR))
    weight_TP = (before.abs() ** 2).sum((0, 1)).clamp_min(1e-300)
    ratio_TP = (before.conj() * after).sum((0, 1)) / weight_TP
    if float((after - ratio_TP * before).abs().max()) > slack * float(after.abs().max()):
        return None
    gain = float(ratio_TP.abs().mean())
    if float((ratio_TP.abs() - gain).abs().max()) > slack * gain * 10:
        return None
    speeds_P, start_P = _speeds(ratio_TP / gain)
    if float(speeds_P.abs().max()) < 1e-6:
        return None
    spread = ratio_TP / gain - torch.polar(
        torch.ones_like(ratio_TP.abs()),
        start_P + torch.arange(len(ratio_TP), dtype=torch.float64)[:, None] * speeds_P,
    )
    if float(spread.abs().max()) > 1e3 * slack:
        return None
    direction = -1 if float(speeds_P[0]) < 0 else 1
    offset = round(float(start_P[0] / speeds_P[0])) if abs(float(speeds_P[0])) > 1e-6 else 0
    return RotarySpec(
        inv_freq_P=speeds_P * direction,
        pairing=pairing,
        gain=1.0 if abs(gain - 1) < 10 * slack else gain,
        direction=direction,
        query_offset=offset,
        key_offset=offset,
    )


def _speeds(ratio_TP: Tensor) -> tuple[Tensor, Tensor]:
    """Radians per position, refined over longer and longer distances, and the angle at the first
    position.
    """
    start_P = ratio_TP[0].angle()
    steps_TP = ratio_TP * ratio_TP[0].conj()
    speeds_P = steps_TP[1].angle()
    reach = 2
    while reach < len(ratio_TP):
        expected_P = speeds_P * reach
        turns_P = ((expected_P - steps_TP[reach].angle()) / (2 * math.pi)).round()
        speeds_P = (steps_TP[reach].angle() + 2 * math.pi * turns_P) / reach
        reach *= 2
    return speeds_P, start_P


def base_of(rotary: RotarySpec) -> float | None:
    """The base b whose speeds b^(-2p/R) these are; None where they have another form."""
    return frequency_law.base_of(rotary.inv_freq_P, 1e-4, MEASURED)
