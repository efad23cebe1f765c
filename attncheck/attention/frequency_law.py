"""Rotary frequencies as a few numbers: the base, the rotated channels and one factor on all.

Axes: P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

SLOWEST = 1e-7
"""Pairs that rotate by less than this many radians per position are taken to stand still."""
DIGITS = range(1, 8)


@final
@dataclass(frozen=True, kw_only=True)
class FrequencyLaw:
    """`factor` times `base` to the power of -2 p / `over`, for the pairs p of `width` channels."""

    base: float
    width: int
    over: int
    factor: float = 1.0

    @property
    def inv_freq_P(self) -> Tensor:
        """Radians per position."""
        return self.factor * power_speeds(self.base, self.width, self.over)


def power_speeds(base: float, width: int, over: int | None = None) -> Tensor:
    """inv_freq_P of the plain scheme; `over` is the width in the exponent where it is another."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / (over or width))


def fitted_laws(inv_freq_P: Tensor, widths: tuple[int, ...] = ()) -> Iterator[FrequencyLaw]:
    """Laws that may have made these frequencies, those of the roundest numbers first. `widths` are
    tried in the exponent after their own. Whether one fits is left to who knows their rounding.
    """
    speeds_P = inv_freq_P.double().abs()
    speeds_P = speeds_P[speeds_P > SLOWEST].sort(descending=True).values
    if len(speeds_P) < 2:
        return
    width = 2 * len(speeds_P)
    ratio_P = speeds_P / speeds_P[0]
    pairs_P = torch.arange(len(speeds_P), dtype=torch.float64)
    # the pair that tells the base best: its error is that of the speed, over p
    best = int((pairs_P * speeds_P).argmax())
    for over in dict.fromkeys((width, *widths)):
        base = float(ratio_P[best] ** (-over / (2 * best)))
        for digits in DIGITS:
            yield FrequencyLaw(
                base=float(f"{base:.{digits}g}"),
                width=width,
                over=over,
                factor=float(f"{float(speeds_P[0]):.{digits}g}"),
            )
        yield FrequencyLaw(base=base, width=width, over=over, factor=float(speeds_P[0]))


def base_of(inv_freq_P: Tensor, relative: float, absolute: float) -> float | None:
    """The base whose plain scheme these frequencies follow, as measured; None for another form."""
    laws = list(fitted_laws(inv_freq_P))
    if not laws or laws[-1].width != 2 * len(inv_freq_P):
        return None
    expected_P = laws[-1].inv_freq_P
    fits = bool(((expected_P - inv_freq_P).abs() <= relative * expected_P + absolute).all())
    return laws[-1].base if fits and abs(laws[-1].factor - 1) < relative else None
