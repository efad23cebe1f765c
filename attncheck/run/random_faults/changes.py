"""The changes of a random fault as plain operations on tensors.

Axes: B batch, H heads, N tokens (queries T or keys S), D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.attention.rope import Pairing, rotate
from attncheck.core.errors import CannotInject
from attncheck.run.random_faults.parts import EVERY, RandomFault


@final
@dataclass(frozen=True)
class Rotary:
    """How a layer rotates its queries and keys: speeds of the pairs, and which channels pair."""

    inv_freq_P: Tensor
    pairing: Pairing

    def turned(self, states_BHND: Tensor, by_N: Tensor, base: float = 1.0) -> Tensor:
        """States that are rotated on by so many positions, at the speeds of another base."""
        pairs = self.inv_freq_P.numel()
        power_P = torch.arange(pairs, device=states_BHND.device) / pairs
        speed_P = self.inv_freq_P.to(states_BHND.device).double() * base**-power_P
        angle_NR = torch.cat([by_N.double()[:, None] * speed_P] * 2, -1)
        cos, sin = (each[None].to(states_BHND.dtype) for each in (angle_NR.cos(), angle_NR.sin()))
        return rotate(states_BHND, cos, sin, self.pairing)


def region(fault: RandomFault, like_BHND: Tensor, positions_N: Tensor) -> Tensor:
    """The rows, heads and tokens that the fault concerns, (B, H, N, 1) booleans."""
    rows, heads, _, _ = like_BHND.shape
    first, last = fault.span
    tokens_N = positions_N >= first
    if last is not None:
        tokens_N = tokens_N & (positions_N <= last)
    rows_B, heads_H = (_only(each, n) for each, n in ((fault.rows, rows), (fault.heads, heads)))
    device = like_BHND.device
    found = rows_B.to(device)[:, None, None] & heads_H.to(device)[:, None] & tokens_N.to(device)
    return found[..., None]


def _only(chosen: str, count: int) -> Tensor:
    if chosen == EVERY:
        return torch.ones(count, dtype=torch.bool)
    return torch.arange(count) == int(chosen)


def changed(
    fault: RandomFault,
    states_BHND: Tensor,
    positions_N: Tensor,
    rotary: Rotary | None = None,
    other: Tensor | None = None,
) -> Tensor:
    """States with the change in the region that the fault concerns; `other` are those of another
    layer.

    Raises:
        CannotInject: there is nothing to take the place of these states.
    """
    new_BHND = _new(fault, states_BHND, positions_N, rotary, other)
    return torch.where(region(fault, states_BHND, positions_N), new_BHND, states_BHND)


def _new(
    fault: RandomFault,
    states: Tensor,
    positions_N: Tensor,
    rotary: Rotary | None,
    other: Tensor | None,
) -> Tensor:
    kind, number = fault.kind, fault.number
    if kind in ("angle", "base"):
        if rotary is None:
            raise CannotInject("this layer does not rotate")
        if kind == "angle":
            return rotary.turned(states, torch.full_like(positions_N, number, dtype=torch.float64))
        return rotary.turned(rotary.turned(states, positions_N, number), -positions_N)
    if kind == "layer":
        # the first layer has none before it
        return states if other is None or other.shape != states.shape else other
    plain: dict[str, Callable[[], Tensor]] = {
        "slot": lambda: shifted(states, int(number)),
        "head": lambda: states.roll(int(number), 1),
        "row": lambda: states.roll(int(number), 0),
        "round": lambda: with_bits(states, int(number)),
        "scale": lambda: states * number,
        "zero": lambda: torch.zeros_like(states),
        "leak": lambda: states + number * shifted(states, -1),
        "spill": lambda: states + number * states.roll(1, 0),
    }
    return plain[kind]()


def shifted(states_BHND: Tensor, by: int) -> Tensor:
    """Each token gets what the token `by` before it has; the ends keep theirs."""
    count = states_BHND.shape[2]
    source_N = (torch.arange(count, device=states_BHND.device) - by).clamp(0, count - 1)
    return states_BHND.index_select(2, source_N)


def with_bits(values: Tensor, bits: int) -> Tensor:
    """Numbers rounded to `bits` bits of significand. By arithmetic: casts may be promoted."""
    significand, exponent = torch.frexp(values)
    return torch.ldexp((significand * 2**bits).round() / 2**bits, exponent).to(values.dtype)


def cells_changed(
    fault: RandomFault, allowed_BHTS: Tensor, queries_T: Tensor, keys_S: Tensor
) -> Tensor:
    """Which keys each query may read, with the change; a query that would read nothing keeps what
    it had.
    """
    query_T1, key_S, number = queries_T[:, None], keys_S, int(fault.number)
    past_TS = key_S <= query_T1
    index_T1 = torch.arange(len(queries_T), device=key_S.device)[:, None]
    index_S = torch.arange(len(keys_S), device=key_S.device)
    rules: dict[str, Callable[[], Tensor]] = {
        "ahead": lambda: allowed_BHTS | ((key_S > query_T1) & (key_S <= query_T1 + number)),
        "short": lambda: allowed_BHTS & (key_S <= query_T1 - number),
        "window": lambda: allowed_BHTS & (key_S > query_T1 - number),
        "hide": lambda: allowed_BHTS & (key_S != number),
        "top-left": lambda: allowed_BHTS & (index_S <= index_T1),
        "past": lambda: allowed_BHTS | past_TS,
        "not-self": lambda: allowed_BHTS & (key_S != query_T1),
    }
    new_BHTS = rules[fault.kind]()
    new_BHTS = torch.where(new_BHTS.any(-1, keepdim=True), new_BHTS, allowed_BHTS)
    return torch.where(region(fault, allowed_BHTS, queries_T), new_BHTS, allowed_BHTS)
