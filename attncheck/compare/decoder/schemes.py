"""The rotary scheme that a config states for a layer, and the speeds of that scheme with one number
changed.

Axes: P pairs of channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.rope_spec import COMPUTED_IN, FORMULAS, rope_parameters
from attncheck.compare.decoder.spec import AttentionSpec, RotarySpec

LENGTH = 0
HALVES = (torch.bfloat16, torch.float16)
LEAST = 1e-12
CLOSE = 1e-5
"""How far speeds computed in float32 are from exact ones, relatively."""


def speeds_of(scheme: dict[str, Any], width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """inv_freq_P of a scheme, computed in a dtype."""
    return FORMULAS[scheme["rope_type"]](scheme, width, LENGTH, dtype).double()


def both_roundings(scheme: dict[str, Any], width: int) -> list[Tensor]:
    """The speeds computed in float64, and those of models that compute them in float32."""
    return [speeds_of(scheme, width, dtype) for dtype in (torch.float64, COMPUTED_IN)]


def with_scheme(attention: AttentionSpec, config: Any, layer: int) -> AttentionSpec:
    """The attention with the config's scheme noted, where that gives the speeds that were read."""
    rotary = attention.rotary
    scheme = None if rotary is None else rope_parameters(config, layer)
    if rotary is None or not isinstance(scheme, dict) or scheme["rope_type"] not in FORMULAS:
        return attention
    try:
        expected_P = speeds_of(scheme, rotary.width)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return attention
    if not _is_rounding_of(rotary.inv_freq_P, expected_P):
        return attention
    return replace(attention, rotary=replace(rotary, scheme=scheme))


def _is_rounding_of(speeds_P: Tensor, exact_P: Tensor) -> bool:
    """Whether speeds are exact ones as float32 or, after a cast of the whole model, as a half
    precision holds them.
    """
    rounded = [exact_P, *(exact_P.float().to(dtype).double() for dtype in HALVES)]
    return any(
        bool(((each - speeds_P).abs() <= CLOSE * each.abs() + LEAST).all()) for each in rounded
    )


def rounded_otherwise(rotary: RotarySpec) -> list[RotarySpec]:
    """The same rotation with its speeds computed in float64 or in float32, or cast to a half
    precision with the rest of the model.
    """
    if rotary.scheme is None:
        return []
    exact_P, single_P = both_roundings(rotary.scheme, rotary.width)
    halves = [single_P.float().to(dtype).double() for dtype in HALVES]
    return [replace(rotary, inv_freq_P=each) for each in (exact_P, single_P, *halves)]
