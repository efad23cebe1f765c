"""By which angles a layer rotates one position further, measured along a row of one token or by a
forward with all positions one higher; and by how many positions observed queries and keys were
rotated.

Axes: B batch, H heads, T positions, D head width, N vectors, P pairs of channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.frequency_law import SLOWEST, fitted_laws
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.trusted import Trusted
from attncheck.judge.rotation_angles import Layout, rotation_between
from attncheck.model.forward_spec import ForwardSpec, Positions, counting

ANGLE = 1e-3
"""Angles within so many radians are the same: tables may be of another precision."""
NEAR = 1e-2
"""A number of positions this near to a whole one is that."""
REPEATS = 6
TABLE = torch.float32


@final
@dataclass(frozen=True)
class PositionRotation:
    """The rotation of one layer: its pairs of channels and their radians per position."""

    layout: Layout
    speed_P: Tensor

    def offset(self, observed_ND: Tensor, right_ND: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        """Whether each vector was only rotated (N,), and by how many positions (NaN where by angles
        that no number of positions gives).

        The slowest pair gives a first number, and each faster one makes it finer.
        """
        observed_NP, right_NP = self._pairs(observed_ND), self._pairs(right_ND)
        rotated_N = ((observed_NP.abs() - right_NP.abs()).abs() <= 2 * limit).all(-1)
        rotated_N &= self._rest_agrees(observed_ND, right_ND, limit)
        angle_NP = self._angles(observed_ND, right_ND)
        offset_N = torch.zeros_like(angle_NP[:, 0])
        for pair in self.speed_P.abs().argsort().tolist():
            if abs(float(self.speed_P[pair])) >= SLOWEST:
                speed = float(self.speed_P[pair])
                offset_N = offset_N + _wrapped(angle_NP[:, pair] - offset_N * speed) / speed
        off_NP = _wrapped(angle_NP - offset_N[:, None] * self.speed_P).abs()
        fits_N = (off_NP <= ANGLE).all(-1)
        whole_N = offset_N.round()
        offset_N = torch.where((offset_N - whole_N).abs() < NEAR, whole_N, offset_N)
        return rotated_N, torch.where(fits_N, offset_N, torch.nan)

    def base(self, observed_ND: Tensor, right_ND: Tensor, token_N: Tensor) -> float | None:
        """The base whose plain frequencies rotate every vector as far as it is, each at its token
        (N,); None where there is none.
        """
        angle_NP = self._angles(observed_ND, right_ND)
        order = token_N.argsort()
        token_N, angle_NP = token_N[order], angle_NP[order]
        next_N = token_N.diff() == 1
        if not bool(next_N.any()):
            return None
        step_P = _wrapped(angle_NP.diff(dim=0)[next_N]).median(0).values
        for law in fitted_laws(self.speed_P.abs() + step_P * self.speed_P.sign()):
            more_P = law.inv_freq_P[: len(step_P)]
            if abs(law.factor - 1) > ANGLE or len(more_P) != len(step_P):
                continue
            turned_NP = token_N[:, None] * (more_P * self.speed_P.sign() - self.speed_P)
            if bool((_wrapped(angle_NP - turned_NP).abs() <= ANGLE).all()):
                return law.base
        return None

    def _angles(self, observed_ND: Tensor, right_ND: Tensor) -> Tensor:
        return (self._pairs(observed_ND) * self._pairs(right_ND).conj()).angle()

    def _rest_agrees(self, observed_ND: Tensor, right_ND: Tensor, limit: float) -> Tensor:
        """Whether the channels that are not rotated are the same."""
        first, count = self.layout[:2]
        same_ND = (observed_ND - right_ND).abs() <= limit
        same_ND[:, first : first + count] = True
        return same_ND.all(-1)

    def _pairs(self, states_ND: Tensor) -> Tensor:
        first, count, pairing = self.layout[:3]
        part = states_ND[:, first : first + count].double()
        left, right = part.chunk(2, -1) if pairing == "half" else (part[:, ::2], part[:, 1::2])
        return torch.complex(left.contiguous(), right.contiguous())


def _wrapped(angle: Tensor) -> Tensor:
    """Angles between minus and plus half a turn."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def measured_rotations(trusted: Trusted, spec: ForwardSpec) -> dict[int, PositionRotation]:
    """The rotation of each attention module that has one, by its identity: along a row of one
    token, whose keys nothing but rotation tells apart; where states mix positions in another way,
    from the same forward with all positions one higher.
    """
    row = ForwardSpec(((trusted.subject.inputs.row[0],) * REPEATS,))
    found: dict[int, PositionRotation] = {}
    for measure in (partial(_along, trusted, row), partial(_shifted, trusted, spec)):
        try:
            pairs = measure()
        except Unsupported:
            continue
        for module, pair in pairs.items():
            rotation = None if module in found else _rotation(*pair)
            if rotation is not None:
                found[module] = rotation
        if found and len(found) == len(pairs):
            break
    return found


def _along(trusted: Trusted, row: ForwardSpec) -> dict[int, tuple[Tensor, Tensor]]:
    """The keys of each module at every position of a row but the last, and but the first."""
    keys = _keys(trusted, row, None)
    return {module: (each[:, :, :-1], each[:, :, 1:]) for module, each in keys.items()}


def _shifted(trusted: Trusted, spec: ForwardSpec) -> dict[int, tuple[Tensor, Tensor]]:
    """The keys of each module at the usual positions, and at those one higher."""
    trusted.subject.can.takes_positions.require()
    usual = spec.positions or counting(len(spec.tokens), spec.length)
    later = tuple(tuple(position + 1 for position in row) for row in usual)
    before, after = (_keys(trusted, spec, positions) for positions in (usual, later))
    return {module: (before[module], after[module]) for module in before if module in after}


def _keys(trusted: Trusted, spec: ForwardSpec, positions: Positions | None) -> dict[int, Tensor]:
    """The keys of each module with these positions, in one plain forward."""
    subject = trusted.subject

    def keep(call: AttentionCall) -> tuple[int, Tensor]:
        return id(call.module), call.key_BGSD.detach().clone()

    if positions is None:
        return dict(subject.record_calls(spec.tokens, keep))
    given_BT = torch.tensor(positions, device=subject.device)
    return dict(subject.record_calls(spec.tokens, keep, positions_BT=given_BT))


def _rotation(before_BGTD: Tensor, after_BGTD: Tensor) -> PositionRotation | None:
    if before_BGTD.shape != after_BGTD.shape:
        return None
    # tables may be of float32, and then the hidden states of the two forwards differ by as much
    found = rotation_between(before_BGTD.to(TABLE), after_BGTD.to(TABLE))
    if found is None or not found.pairs or found.layout is None:
        return None
    speed_P = found.factor_BTP.mean((0, 1)).angle()
    return PositionRotation(found.layout, speed_P)
