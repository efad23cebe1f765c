"""What the config states about each layer's attention: its span, scale, soft-cap and sinks.

Nothing is assumed where no field states it: the answer is then empty, with the reason. Where only
the layer itself states something (a `scaling` or `sliding_window` attribute), that counts.

Axes: T query positions, S key positions, H query heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import of_layer
from attncheck.model.compat import config_fields
from attncheck.model.facts import WINDOWS

Kind = Literal["full", "sliding", "chunked"]
PER_LAYER = ("layer_types", "attention_layers", "attn_layers")
CHUNK = "attention_chunk_size"
WHOLE = ("full_attention", "global", "attention", "full", "hybrid")
PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
OWN_CAP = re.compile(r"(soft|logit)s?_?_?cap", re.IGNORECASE)
CAP = re.compile(r"(?=.*attn|.*attention)(?=.*soft_?_?cap)")
SINK = re.compile(r"sink")
SCALES = (
    "scaling",
    "scale",
    "softmax_scale",
    "attn_scale",
    "scale_attn",
    "scaling_factor",
    "inv_norm_factor",
)
INVERSE_SCALES = ("norm_factor",)
MULTIPLIER = re.compile(r"mult|scale|gain|factor")
LIMITS = re.compile(r"(?!.*expert)(window|local|band|global|sparse|strided?)(_|$)")
"""What people call a limit of attention in configs of their own."""
SAME = 1e-5
"""Two factors are the same within this relative difference."""


@final
@dataclass(frozen=True)
class AttentionSpan:
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
        words = {"full": "the whole past", "sliding": f"a window of {self.size}"}
        return words.get(self.kind, f"chunks of {self.size}")


FULL = AttentionSpan("full")


@final
@dataclass(frozen=True)
class SpanSpec:
    """The spans that the config allows for one layer: none with the `reason`, and several where it
    does not say which layers have the window.
    """

    spans: tuple[AttentionSpan, ...]
    reason: str = ""


def _size(config: Any, names: tuple[str, ...], index: int | None) -> int | None:
    values = (of_layer(getattr(config, name, None), index) for name in names)
    return next((each for each in values if type(each) is int and each > 0), None)


def _of_type(word: str, window: int | None, chunk: int | None) -> SpanSpec:
    if "chunk" in word and chunk:
        return SpanSpec((AttentionSpan("chunked", chunk),))
    if ("sliding" in word or word == "local") and window:
        return SpanSpec((AttentionSpan("sliding", window),))
    if word in WHOLE:
        return SpanSpec((FULL,))
    return SpanSpec((), f"a layer of type `{word}` promises no reach of a fixed form")


def span_spec(config: Any, module: nn.Module, index: int | None) -> SpanSpec:
    """The spans that the config allows for one layer."""
    window, chunk = _size(config, WINDOWS, index), _size(config, (CHUNK,), index)
    for name in PER_LAYER:
        types = getattr(config, name, None)
        listed = isinstance(types, (list, tuple)) and all(isinstance(each, str) for each in types)
        if types and listed:
            word = of_layer(types, index)
            reason = f"the layer's place in `{name}` is not known"
            return _of_type(word, window, chunk) if word else SpanSpec((), reason)
    if getattr(module, "is_sliding", None) is not None and window:
        return SpanSpec((AttentionSpan("sliding", window) if module.is_sliding else FULL,))
    if chunk:
        return SpanSpec((AttentionSpan("chunked", chunk), FULL))
    return _without_types(config, window, index)


def _without_types(config: Any, window: int | None, index: int | None) -> SpanSpec:
    if not window or getattr(config, "use_sliding_window", True) is False:
        own = None if window else _limit_of_its_own(config)
        reason = f"its config has `{own}`, which may limit what a layer reads in a way of its own"
        return SpanSpec((), reason) if own else SpanSpec((FULL,))
    sliding = AttentionSpan("sliding", window)
    first = getattr(config, "max_window_layers", None)
    if isinstance(first, int) and index is not None and hasattr(config, "use_sliding_window"):
        return SpanSpec((sliding if index >= first else FULL,))
    pattern = _size(config, PATTERNS, None)
    if pattern and index is not None:
        return SpanSpec((sliding if (index + 1) % pattern else FULL,))
    return SpanSpec((sliding, FULL))


def _limit_of_its_own(config: Any) -> str | None:
    """The field of a config that is not the library's by whose name a layer may read less than
    all.
    """
    if type(config).__module__.startswith("transformers."):
        return None
    return next(
        (
            name
            for name, value in config_fields(config).items()
            if isinstance(value, int) and value > 1 and LIMITS.search(name)
        ),
        None,
    )


@final
@dataclass(frozen=True)
class ScaleSpec:
    """One scale that the layer may have, and what states it."""

    value: float
    source: str


def positive(value: Any) -> float | None:
    """A number above zero, also out of a tensor of one element; None for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = float(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and value > 0 else None


def _stated_scale(config: Any, width: int, index: int | None) -> ScaleSpec | None:
    scalar = positive(getattr(config, "query_pre_attn_scalar", None))
    if scalar:
        return ScaleSpec(scalar**-0.5, "query_pre_attn_scalar")
    multiplier = positive(getattr(config, "attention_multiplier", None))
    if multiplier:
        return ScaleSpec(multiplier, "attention_multiplier")
    value, source = width**-0.5, ""
    if getattr(config, "scale_attn_weights", True) is False:
        value, source = 1.0, "scale_attn_weights"
    if getattr(config, "scale_attn_by_inverse_layer_idx", False) is True and index is not None:
        value, source = value / (index + 1), "scale_attn_by_inverse_layer_idx"
    return ScaleSpec(value, source) if source else None


def scale_specs(config: Any, module: nn.Module, width: int, index: int | None) -> list[ScaleSpec]:
    """The scales that the scores may have: the config's field, otherwise what the layer declares
    and 1/sqrt(head width).
    """
    stated = _stated_scale(config, width, index)
    if stated is not None:
        return [stated]
    scales = [(name, positive(getattr(module, name, None))) for name in SCALES]
    inverse = [(name, positive(getattr(module, name, None))) for name in INVERSE_SCALES]
    found = [ScaleSpec(value, f"the layer's `{name}`") for name, value in scales if value]
    found += [ScaleSpec(1 / value, f"the layer's `{name}`") for name, value in inverse if value]
    return [*found, ScaleSpec(width**-0.5, "1/sqrt(head width)")]


def softcap_spec(config: Any) -> float | None:
    """The soft-cap of the attention scores that the config states."""
    fields = vars(config) if config is not None else {}
    return next(filter(None, (positive(fields[name]) for name in fields if CAP.search(name))), None)


def own_softcap(module: nn.Module) -> float | None:
    """The soft-cap of its scores that an attention module keeps as an attribute."""
    found = (positive(value) for name, value in vars(module).items() if OWN_CAP.search(name))
    return next(filter(None, found), None)


def sinks_of(module: nn.Module, heads: int) -> Tensor | None:
    """sinks_H: the layer's own learned sinks, a vector of one number for each head."""
    for name, value in module.named_parameters(recurse=False):
        if SINK.search(name) and value.numel() == heads:
            return value.detach().flatten()
    return None


def factor_check(
    config: Any, model: nn.Module, module: nn.Module, resolved: float = 0.0
) -> Callable[[float, bool], bool]:
    """A function that says whether a factor on queries or keys is a multiplier of the layer or the
    config, or (with its second argument) a rotary gain such as YaRN's inside tables not seen.

    The scale of the scores is no such multiplier: on the queries too, it would apply twice. A
    factor is known up to `resolved`, the relative error of lengths in the dtype that it is read in.
    """
    named = {**(vars(config) if config is not None else {}), **vars(module)}
    scales = (*SCALES, *INVERSE_SCALES)
    multipliers = [
        positive(value)
        for name, value in named.items()
        if MULTIPLIER.search(name) and name not in scales
    ]

    def is_known(factor: float, with_gains: bool) -> bool:
        gains = (positive(getattr(each, "attention_scaling", None)) for each in model.modules())
        known = (*multipliers, *(gains if with_gains else ()))
        return any(abs(factor / value - 1) < max(SAME, resolved) for value in known if value)

    return is_known
