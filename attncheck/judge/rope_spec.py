"""How far the config promises that each position turns queries and keys: one frequency for each
pair of channels.

Computed here from the numbers in the config, by the names of transformers' rotary standard
(`rope_parameters`, keyed by layer type where layers differ, and the fields of older releases) and
its published schemes. What is not understood is no promise.

Axes: P pairs of channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from attncheck.numerics.divergence import max_abs_diff

BASES = ("rope_theta", "rotary_emb_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct")
PART = "qk_rope_head_dim"
WIDTH = "rotary_dim"
ORIGINAL = "original_max_position_embeddings"
BORN = torch.float32
"""The dtype in which lists of frequencies are made, whatever the model's."""
OLD_NAMES = {"su": "longrope", "mrope": "default", "none": "default"}


@final
@dataclass(frozen=True, kw_only=True)
class RopePromise:
    """Radians for each position and pair of channels (none where the layer has no rotation), and
    the gain of the turn.

    `rounding` is how far, in parts of a frequency, its computation in the dtype that it is made in
    strays; `words` say which numbers it comes from.
    """

    frequencies_P: Tensor
    gain: float = 1.0
    rounding: float = 0.0
    words: str = ""


NO_ROTATION = RopePromise(
    frequencies_P=torch.zeros(0, dtype=torch.float64), words="the config promises no rotation there"
)

Table = dict[str, Any]
Formula = Callable[[Table, int, int, torch.dtype], Tensor]
"""From the table, the rotary width, the length of the sequence and a dtype to frequencies_P."""


def layer_word(config: Any, index: int | None) -> str | None:
    """What the config calls the type of a layer."""
    words = getattr(config, "layer_types", None)
    known = isinstance(words, (list, tuple)) and index is not None and index < len(words)
    return str(words[index]) if known and words is not None and index is not None else None


def promised_rotations(
    config: Any, index: int | None, width: int, length: int
) -> list[RopePromise] | str:
    """What one layer with heads of `width` channels may be held to at a `length`, or why it cannot
    be held to anything.

    There are several where the config states two widths that disagree: of heads, of the part that
    is turned.
    """
    stated = getattr(config, "no_rope_layers", None)
    if (
        isinstance(stated, (list, tuple))
        and index is not None
        and index < len(stated)
        and not stated[index]
    ):
        return [NO_ROTATION]
    table = rotary_table(config, index)
    if table is None:
        return [NO_ROTATION]
    if isinstance(table, str):
        return table
    kind = str(table["rope_type"])
    if kind not in FORMULAS:
        return f"the config's rotary scheme `{kind}` is not known here"
    if kind == "dynamic" and length >= table["max"]:
        return "its frequencies depend on the longest sequence so far"
    try:
        return [
            _promise(table, kind, each, length) for each in _widths(config, table, index, width)
        ]
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as missing:
        return f"the config's rotary scheme `{kind}` is not complete: {missing}"


def _promise(table: Table, kind: str, width: int, length: int) -> RopePromise:
    exact_P = FORMULAS[kind](table, width, length, torch.float64)
    other_P = FORMULAS[kind]({**table, "by_logarithm": True}, width, length, BORN)
    turning_P = exact_P > 0
    strays = [
        max_abs_diff((each.double() / exact_P)[turning_P], 1.0)
        for each in (FORMULAS[kind](table, width, length, BORN), other_P)
    ]
    rounding = max(torch.finfo(BORN).eps, *strays)
    named = (
        ""
        if kind == "default"
        else f", {kind} by {table['factor']:g}"
        if table.get("factor")
        else f", {kind}"
    )
    words = f"rope_theta {table['rope_theta']:g}, {width} channels{named}"
    return RopePromise(
        frequencies_P=exact_P, gain=_gain(table, kind), rounding=rounding, words=words
    )


def _at(value: Any, index: int | None) -> Any:
    if isinstance(value, (list, tuple)):
        return value[index] if index is not None and index < len(value) else None
    return value


def _first(config: Any, names: tuple[str, ...], index: int | None) -> Any:
    found = (_at(getattr(config, name, None), index) for name in names)
    return next(
        (
            each
            for each in found
            if isinstance(each, (int, float)) and not isinstance(each, bool) and each
        ),
        None,
    )


def _widths(config: Any, table: Table, index: int | None, width: int) -> list[int]:
    part = _first(config, (PART,), index)
    if part:
        return [int(part)]
    stated = _first(config, (WIDTH,), index)
    share = table.get("partial_rotary_factor") or _first(config, SHARES, index) or 1.0
    own = _first(config, ("head_dim",), index) or width
    whole = table["rope_type"] == "proportional"
    table["share"] = share
    widths = [int(each if whole else each * share) for each in (width, own)]
    return list(dict.fromkeys([int(stated), *widths] if stated else widths))


def rotary_table(config: Any, index: int | None) -> Table | str | None:
    """The rotary numbers of one layer in one form; None where it has none, a text where that is not
    known.
    """
    stated = getattr(config, "rope_parameters", None)
    stated = stated if isinstance(stated, dict) else getattr(config, "rope_scaling", None)
    table = dict(stated) if isinstance(stated, dict) else {}
    word = layer_word(config, index)
    nested = {name for name, value in table.items() if isinstance(value, dict)}
    if nested:
        if word is None or word not in table:
            return f"`rope_parameters` has no entry for layers of type `{word}`"
        if table[word] is None:
            return None
        table = dict(table[word])
    base = table.get("rope_theta") or _first(config, BASES, index)
    local = _first(config, ("rope_local_base_freq",), index)
    if local and not nested and word == "sliding_attention":
        table, base = {}, local
    if not isinstance(base, (int, float)):
        return "the config states no base of the rotary frequencies"
    kind = str(table.get("rope_type") or table.get("type") or "default")
    longest = getattr(config, "max_position_embeddings", None) or 0
    original = table.get(ORIGINAL) or getattr(config, ORIGINAL, None) or longest
    return {
        **table,
        "rope_theta": float(base),
        "rope_type": OLD_NAMES.get(kind, kind),
        "max": longest,
        ORIGINAL: original,
    }


def _powers(table: Table, width: int, dtype: torch.dtype, divisor: int | None = None) -> Tensor:
    """The base to the power of 2 p / width, P of them."""
    share_P = torch.arange(0, width, 2, dtype=torch.int64).to(dtype) / (divisor or width)
    if table.get("by_logarithm"):
        return torch.exp(share_P * math.log(table["rope_theta"]))
    powers_P: Tensor = table["rope_theta"] ** share_P
    return powers_P


def _default(table: Table, width: int, length: int, dtype: torch.dtype) -> Tensor:
    return 1.0 / _powers(table, width, dtype)


def _linear(table: Table, width: int, length: int, dtype: torch.dtype) -> Tensor:
    return 1.0 / _powers(table, width, dtype) / float(table["factor"])


def _proportional(table: Table, width: int, length: int, dtype: torch.dtype) -> Tensor:
    turning = int(table["share"] * width // 2)
    turning_P = 1.0 / _powers(table, 2 * turning, dtype, divisor=width) / table.get("factor", 1.0)
    return torch.cat([turning_P, torch.zeros(width // 2 - turning, dtype=dtype)])


def _llama3(table: Table, width: int, length: int, dtype: torch.dtype) -> Tensor:
    plain_P = 1.0 / _powers(table, width, dtype)
    low, high, factor = (
        float(table[name]) for name in ("low_freq_factor", "high_freq_factor", "factor")
    )
    rounds_P = float(table[ORIGINAL]) * plain_P / (2 * math.pi)
    kept_P = ((rounds_P - low) / (high - low)).clamp(0, 1)
    return kept_P * plain_P + (1 - kept_P) * plain_P / factor


def _yarn(table: Table, width: int, length: int, dtype: torch.dtype) -> Tensor:
    powers_P, base = _powers(table, width, dtype), table["rope_theta"]

    def dimension(rounds: float) -> float:
        return width * math.log(table[ORIGINAL] / (rounds * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(table.get("beta_fast") or 32), dimension(table.get("beta_slow") or 1)
    if table.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    stretched_P = ((torch.arange(width // 2, dtype=dtype) - low) / (high - low)).clamp(0, 1)
    return stretched_P / (_stretch(table) * powers_P) + (1 - stretched_P) / powers_P


def _longrope(table: Table, width: int, length: int, dtype: torch.dtype) -> Tensor:
    factors = table["long_factor"] if length > table[ORIGINAL] else table["short_factor"]
    return 1.0 / (torch.tensor(factors, dtype=dtype) * _powers(table, width, dtype))


def _stretch(table: Table) -> float:
    return float(table.get("factor") or table["max"] / table[ORIGINAL])


def _gain(table: Table, kind: str) -> float:
    """What the turned channels are multiplied by."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if table.get("attention_factor") is not None:
        return float(table["attention_factor"])
    stretch = _stretch(table)
    if stretch <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(stretch) / math.log(table[ORIGINAL]))
    mscale, over = table.get("mscale"), table.get("mscale_all_dim")
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
