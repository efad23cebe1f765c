"""What the config promises about each layer's attention: its reach, its scale, its soft-cap, its
sinks.

A promise that no field states is not invented: the answer is then empty, with the reason. Where
only the layer itself states something (a `scaling` attribute, a `sliding_window` attribute), that
is what it is held to.

Axes: T query positions, S key positions, H query heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from attncheck.model.facts import WINDOWS

Kind = Literal["full", "sliding", "chunked"]
PER_LAYER = ("layer_types", "attention_layers", "attn_layers")
CHUNK = "attention_chunk_size"
WHOLE = ("full_attention", "global", "attention", "full", "hybrid")
PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
CAP = re.compile(r"(?=.*attn|.*attention)(?=.*soft_?_?cap)")
SINK = re.compile(r"sink")
DECLARED = (
    "scaling",
    "scale",
    "softmax_scale",
    "attn_scale",
    "scale_attn",
    "scaling_factor",
    "inv_norm_factor",
)
INVERSE = ("norm_factor",)
MULTIPLIER = re.compile(r"mult|scale|gain|factor")
SAME = 1e-5


@final
@dataclass(frozen=True)
class Reach:
    """How far back a query reads, itself included: everything, the last `size` keys, or its own
    chunk of `size`.
    """

    kind: Kind
    size: int = 0

    def allowed_TS(self, new: int, total: int, device: torch.device | None = None) -> Tensor:
        """(T, S) booleans for `new` queries that are the last of `total` positions."""
        query_T1 = torch.arange(total - new, total, device=device)[:, None]
        key_1S = torch.arange(total, device=device)[None]
        allowed = key_1S <= query_T1
        if self.kind == "sliding":
            allowed &= key_1S > query_T1 - self.size
        if self.kind == "chunked":
            allowed &= key_1S // self.size == query_T1 // self.size
        return allowed

    def __str__(self) -> str:
        return {
            "full": "the whole past",
            "sliding": f"a window of {self.size}",
            "chunked": f"chunks of {self.size}",
        }[self.kind]


FULL = Reach("full")


@final
@dataclass(frozen=True)
class ReachPromise:
    """The reaches that the config allows for one layer (several where it does not say which layers
    have the window).
    """

    reaches: tuple[Reach, ...]
    reason: str = ""


def _at(value: Any, index: int | None) -> Any:
    """A field that may hold one value for each layer."""
    if isinstance(value, (list, tuple)):
        return value[index] if index is not None and index < len(value) else None
    return value


def _size(config: Any, names: tuple[str, ...], index: int | None) -> int | None:
    values = (_at(getattr(config, name, None), index) for name in names)
    return next(
        (v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None
    )


def _of_type(word: str, window: int | None, chunk: int | None) -> ReachPromise:
    if "chunk" in word and chunk:
        return ReachPromise((Reach("chunked", chunk),))
    if ("sliding" in word or word == "local") and window:
        return ReachPromise((Reach("sliding", window),))
    if word in WHOLE:
        return ReachPromise((FULL,))
    return ReachPromise((), f"a layer of type `{word}` promises no reach of a fixed form")


def promised_reach(config: Any, module: nn.Module, index: int | None) -> ReachPromise:
    """How far back the attention of one layer may and must read."""
    window, chunk = _size(config, WINDOWS, index), _size(config, (CHUNK,), index)
    for name in PER_LAYER:
        words = getattr(config, name, None)
        if (
            isinstance(words, (list, tuple))
            and words
            and all(isinstance(word, str) for word in words)
        ):
            if index is None or index >= len(words):
                return ReachPromise((), f"the layer's place in `{name}` is not known")
            return _of_type(words[index], window, chunk)
    if getattr(module, "is_sliding", None) is not None and window:
        return ReachPromise((Reach("sliding", window) if module.is_sliding else FULL,))
    if chunk:
        return ReachPromise((Reach("chunked", chunk), FULL))
    return _without_types(config, window, index)


def _without_types(config: Any, window: int | None, index: int | None) -> ReachPromise:
    if not window or getattr(config, "use_sliding_window", True) is False:
        return ReachPromise((FULL,))
    sliding = Reach("sliding", window)
    first = getattr(config, "max_window_layers", None)
    if isinstance(first, int) and index is not None and hasattr(config, "use_sliding_window"):
        return ReachPromise((sliding if index >= first else FULL,))
    pattern = _size(config, PATTERNS, None)
    if pattern and index is not None:
        return ReachPromise((sliding if (index + 1) % pattern else FULL,))
    return ReachPromise((sliding, FULL))


@final
@dataclass(frozen=True)
class ScalePromise:
    """One scale that the layer may be held to, and who says so."""

    value: float
    source: str


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = float(value)
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        else None
    )


def _from_config(config: Any, width: int, index: int | None) -> ScalePromise | None:
    scalar = _number(getattr(config, "query_pre_attn_scalar", None))
    if scalar:
        return ScalePromise(scalar**-0.5, "query_pre_attn_scalar")
    multiplier = _number(getattr(config, "attention_multiplier", None))
    if multiplier:
        return ScalePromise(multiplier, "attention_multiplier")
    value, said = width**-0.5, ""
    if getattr(config, "scale_attn_weights", True) is False:
        value, said = 1.0, "scale_attn_weights"
    if getattr(config, "scale_attn_by_inverse_layer_idx", False) is True and index is not None:
        value, said = value / (index + 1), "scale_attn_by_inverse_layer_idx"
    return ScalePromise(value, said) if said else None


def promised_scales(
    config: Any, module: nn.Module, width: int, index: int | None
) -> list[ScalePromise]:
    """What the scores may be multiplied by: the config's field, else what the layer declares, else
    1/sqrt(head width).
    """
    stated = _from_config(config, width, index)
    if stated is not None:
        return [stated]
    declared = [(name, _number(getattr(module, name, None))) for name in DECLARED]
    inverse = [(name, _number(getattr(module, name, None))) for name in INVERSE]
    found = [ScalePromise(value, f"the layer's `{name}`") for name, value in declared if value]
    found += [ScalePromise(1 / value, f"the layer's `{name}`") for name, value in inverse if value]
    return [*found, ScalePromise(width**-0.5, "1/sqrt(head width)")]


def promised_cap(config: Any) -> tuple[str, float] | None:
    """The soft-cap of the attention scores that the config states, with its field's name."""
    for name, value in vars(config).items() if config is not None else ():
        number = _number(value) if CAP.search(name) else None
        if number:
            return name, number
    return None


def sinks_of(module: nn.Module, heads: int) -> Tensor | None:
    """sinks_H: the layer's own learned sinks, a vector of one number for each head."""
    for name, value in module.named_parameters(recurse=False):
        if SINK.search(name) and value.numel() == heads:
            return value.detach().flatten()
    return None


def known_factor(config: Any, model: nn.Module, module: nn.Module) -> Callable[[float, bool], bool]:
    """Whether a factor on queries or keys is promised: a multiplier that the layer or the config
    names, or a rotary gain.

    The second argument says that the rotary tables were not seen, so that a gain inside them
    (YaRN's) counts as well. The scale of the scores is no such multiplier: applied to the queries
    too, it would be applied twice.
    """
    named = {**vars(config), **vars(module)} if config is not None else vars(module)
    multipliers = [
        _number(v)
        for k, v in named.items()
        if MULTIPLIER.search(k) and k not in (*DECLARED, *INVERSE)
    ]

    def known(factor: float, with_gains: bool) -> bool:
        gains = (
            (_number(getattr(each, "attention_scaling", None)) for each in model.modules())
            if with_gains
            else ()
        )
        return any(abs(factor / value - 1) < SAME for value in (*multipliers, *gains) if value)

    return known
