"""The rotary frequencies that the config states, one for each pair of channels.

Computed here from the numbers in the config, by the names of transformers' rotary standard
(`rope_parameters`, keyed by layer type where layers differ, and the fields of older releases) and
its published schemes. Schemes that are not known here are reported, never guessed.

Axes: P pairs of channels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_type, of_layer
from attncheck.attention.rope import Pairing
from attncheck.numerics.divergence import max_abs

BASES = ("rope_theta", "rotary_emb_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct")
PART = "qk_rope_head_dim"
WIDTH = "rotary_dim"
ORIGINAL = "original_max_position_embeddings"
COMPUTED_IN = torch.float32
"""The dtype in which models compute their frequencies, whatever their own."""
INTERLEAVED = re.compile(r"^(rope|rotary)_interleaved?$")
OLD_NAMES = {"su": "longrope", "mrope": "default", "none": "default"}


@final
@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Radians per position for each pair of channels (no pairs: no rotation), and the gain on the
    rotated channels.

    `rounding` is the relative error of frequencies that a model computes in float32; `origin` names
    the numbers that they come from.
    """

    inv_freq_P: Tensor
    gain: float = 1.0
    rounding: float = 0.0
    origin: str = ""


NO_ROTATION = RopeSpec(
    inv_freq_P=torch.zeros(0, dtype=torch.float64), origin="the config states no rotation there"
)

Parameters = dict[str, Any]
Formula = Callable[[Parameters, int, int, torch.dtype], Tensor]
"""From the parameters, the rotary width, the sequence length and a dtype to inv_freq_P."""


def rope_specs(config: Any, index: int | None, width: int, length: int) -> list[RopeSpec] | str:
    """The rotations that the config allows for one layer with heads of `width` channels, or the
    reason why none is known.

    There are several where the config states two widths that disagree: of heads, and of the part
    that rotates.
    """
    rotates = of_layer(getattr(config, "no_rope_layers", None), index)
    rope = None if rotates is not None and not rotates else rope_parameters(config, index)
    if rope is None:
        return [NO_ROTATION]
    if isinstance(rope, str):
        return rope
    kind = str(rope["rope_type"])
    if kind not in FORMULAS:
        return f"the config's rotary scheme `{kind}` is not known here"
    if kind == "dynamic" and length >= rope["max"]:
        return "its frequencies depend on the longest sequence so far"
    try:
        widths = _widths(config, rope, index, width)
        return [_spec(rope, kind, each, length) for each in widths]
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as missing:
        return f"the config's rotary scheme `{kind}` is not complete: {missing}"


def _spec(rope: Parameters, kind: str, width: int, length: int) -> RopeSpec:
    formula = FORMULAS[kind]
    exact_P = formula(rope, width, length, torch.float64)
    # models raise the base to a power or exponentiate its logarithm: both round, differently
    rounded = [
        formula({**rope, "by_logarithm": by_logarithm}, width, length, COMPUTED_IN)
        for by_logarithm in (False, True)
    ]
    rotating_P = exact_P > 0
    errors = [max_abs((each.double() / exact_P - 1)[rotating_P]) for each in rounded]
    by = f" by {rope['factor']:g}" if rope.get("factor") else ""
    named = "" if kind == "default" else f", {kind}{by}"
    return RopeSpec(
        inv_freq_P=exact_P,
        gain=_gain(rope, kind),
        rounding=max(torch.finfo(COMPUTED_IN).eps, *errors),
        origin=f"rope_theta {rope['rope_theta']:g}, {width} channels{named}",
    )


def stated_pairing(config: Any) -> Pairing | None:
    """Which channels of a projection the config says are a pair: neighbours, or halves; None where
    it does not say.
    """
    fields = vars(config) if config is not None else {}
    stated = next((fields[name] for name in fields if INTERLEAVED.search(name)), None)
    if not isinstance(stated, bool):
        return None
    return "pairs" if stated else "half"


def _first(config: Any, names: tuple[str, ...], index: int | None) -> Any:
    values = (of_layer(getattr(config, name, None), index) for name in names)
    return next((each for each in values if each and type(each) in (int, float)), None)


def _widths(config: Any, rope: Parameters, index: int | None, width: int) -> list[int]:
    part = _first(config, (PART,), index)
    if part:
        return [int(part)]
    stated = _first(config, (WIDTH,), index)
    share = rope.get("partial_rotary_factor") or _first(config, SHARES, index) or 1.0
    own = _first(config, ("head_dim",), index) or width
    whole = rope["rope_type"] == "proportional"
    rope["share"] = share
    widths = [int(each if whole else each * share) for each in (width, own)]
    return list(dict.fromkeys([int(stated), *widths] if stated else widths))


def rope_parameters(config: Any, index: int | None) -> Parameters | str | None:
    """The rotary numbers of one layer in one form; None where it has no rotation, and the reason
    where they are not known.
    """
    stated = getattr(config, "rope_parameters", None)
    stated = stated if isinstance(stated, dict) else getattr(config, "rope_scaling", None)
    found = dict(stated) if isinstance(stated, dict) else {}
    kind_of_layer = layer_type(config, index)
    nested = any(isinstance(value, dict) for value in found.values())
    if nested:
        if kind_of_layer is None or kind_of_layer not in found:
            return f"`rope_parameters` has no entry for layers of type `{kind_of_layer}`"
        if found[kind_of_layer] is None:
            return None
        found = dict(found[kind_of_layer])
    base = found.get("rope_theta") or _first(config, BASES, index)
    local = _first(config, ("rope_local_base_freq",), index)
    if local and not nested and kind_of_layer == "sliding_attention":
        found, base = {}, local
    if not isinstance(base, (int, float)):
        return "the config states no base of the rotary frequencies"
    kind = str(found.get("rope_type") or found.get("type") or "default")
    longest = getattr(config, "max_position_embeddings", None) or 0
    return {
        **found,
        "rope_theta": float(base),
        "rope_type": OLD_NAMES.get(kind, kind),
        "max": longest,
        ORIGINAL: found.get(ORIGINAL) or getattr(config, ORIGINAL, None) or longest,
    }


def _powers(rope: Parameters, width: int, dtype: torch.dtype, divisor: int | None = None) -> Tensor:
    """The base to the power of 2 p / width, P of them."""
    share_P = torch.arange(0, width, 2, dtype=torch.int64).to(dtype) / (divisor or width)
    if rope.get("by_logarithm"):
        return torch.exp(share_P * math.log(rope["rope_theta"]))
    powers_P: Tensor = rope["rope_theta"] ** share_P
    return powers_P


def _default(rope: Parameters, width: int, length: int, dtype: torch.dtype) -> Tensor:
    return 1.0 / _powers(rope, width, dtype)


def _linear(rope: Parameters, width: int, length: int, dtype: torch.dtype) -> Tensor:
    return 1.0 / _powers(rope, width, dtype) / float(rope["factor"])


def _proportional(rope: Parameters, width: int, length: int, dtype: torch.dtype) -> Tensor:
    rotating = int(rope["share"] * width // 2)
    rotating_P = 1.0 / _powers(rope, 2 * rotating, dtype, divisor=width) / rope.get("factor", 1.0)
    return torch.cat([rotating_P, torch.zeros(width // 2 - rotating, dtype=dtype)])


def _llama3(rope: Parameters, width: int, length: int, dtype: torch.dtype) -> Tensor:
    plain_P = 1.0 / _powers(rope, width, dtype)
    low, high, factor = (
        float(rope[name]) for name in ("low_freq_factor", "high_freq_factor", "factor")
    )
    rounds_P = float(rope[ORIGINAL]) * plain_P / (2 * math.pi)
    kept_P = ((rounds_P - low) / (high - low)).clamp(0, 1)
    return kept_P * plain_P + (1 - kept_P) * plain_P / factor


def _yarn(rope: Parameters, width: int, length: int, dtype: torch.dtype) -> Tensor:
    powers_P, base = _powers(rope, width, dtype), rope["rope_theta"]

    def dimension(rounds: float) -> float:
        return width * math.log(rope[ORIGINAL] / (rounds * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    stretched_P = ((torch.arange(width // 2, dtype=dtype) - low) / (high - low)).clamp(0, 1)
    return stretched_P / (_stretch(rope) * powers_P) + (1 - stretched_P) / powers_P


def _longrope(rope: Parameters, width: int, length: int, dtype: torch.dtype) -> Tensor:
    factors = rope["long_factor"] if length > rope[ORIGINAL] else rope["short_factor"]
    return 1.0 / (torch.tensor(factors, dtype=dtype) * _powers(rope, width, dtype))


def _stretch(rope: Parameters) -> float:
    return float(rope.get("factor") or rope["max"] / rope[ORIGINAL])


def _gain(rope: Parameters, kind: str) -> float:
    """The factor on the rotated channels."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    stretch = _stretch(rope)
    if stretch <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(stretch) / math.log(rope[ORIGINAL]))
    mscale, over = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and over:
        return float((0.1 * mscale * math.log(stretch) + 1) / (0.1 * over * math.log(stretch) + 1))
    return 0.1 * math.log(stretch) + 1


FORMULAS: dict[str, Formula] = {
    "default": _default,
    "dynamic": _default,
    "linear": _linear,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
