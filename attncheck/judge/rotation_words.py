"""A wrong rotation as the few numbers that give all of its angles: base, rotated channels, factor.

Axes: P pairs of channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from attncheck.attention.frequency_law import SLOWEST, FrequencyLaw, fitted_laws
from attncheck.attention.rope_spec import RopeSpec

SAME = 1e-6


def rotation_in_numbers(
    observed_P: Tensor, spec: RopeSpec, source: str, gives: Callable[[Tensor], bool]
) -> str | None:
    """What the frequencies are, beside what `source` says; None where no few numbers give them.
    `gives` says whether frequencies give every measured angle, which is the proof.
    """
    expected_P = spec.inv_freq_P
    rotating = int((observed_P.abs() > SLOWEST).sum())
    if rotating < 2 or not len(expected_P):
        return None
    wanted = _stated(expected_P)
    widths = (2 * len(expected_P), 2 * len(observed_P))
    for law in fitted_laws(observed_P, widths):
        if gives(law.inv_freq_P):
            return _difference(law, wanted, spec, source)
    return None


def _stated(expected_P: Tensor) -> FrequencyLaw | None:
    """The law of the expected frequencies, if they follow one to rounding."""
    for law in fitted_laws(expected_P):
        if len(law.inv_freq_P) == len(expected_P) and bool(
            ((law.inv_freq_P - expected_P).abs() <= SAME * expected_P).all()
        ):
            return law
    return None


def _difference(
    law: FrequencyLaw, wanted: FrequencyLaw | None, spec: RopeSpec, source: str
) -> str | None:
    """What differs between two laws, or one law against a scheme of several numbers."""
    if wanted is None:
        factor = "" if math.isclose(law.factor, 1.0) else f" times {law.factor:g}"
        return f"rotary base {law.base:g}{factor} where the {source} says {spec.origin}"
    pairs = (
        ("rotary base", law.base, wanted.base),
        ("rotated channels", law.width, wanted.width),
        ("positions multiplied by", law.factor, wanted.factor),
    )
    wrong = [
        (name, got, want) for name, got, want in pairs if not math.isclose(got, want, rel_tol=1e-5)
    ]
    if not wrong:
        return None
    got = " and ".join(_said(name, value) for name, value, _ in wrong)
    want = " and ".join(f"{value:g}" for _, _, value in wrong)
    return f"{got} where the {source} says {want}{_stretch(law, wanted)}"


def _said(name: str, value: float) -> str:
    return f"{value:g} {name}" if name == "rotated channels" else f"{name} {value:g}"


def _stretch(law: FrequencyLaw, wanted: FrequencyLaw) -> str:
    """The NTK scaling that makes the one base of the other, where its factor is a whole number."""
    if law.width != wanted.width or law.width <= 2 or law.base <= wanted.base:
        return ""
    factor = (law.base / wanted.base) ** ((law.width - 2) / law.width)
    whole = round(factor)
    known = 2 <= whole <= 64 and math.isclose(factor, whole, rel_tol=1e-4)
    return f", as after NTK scaling by {whole}" if known else ""
