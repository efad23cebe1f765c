"""Shrink a config: rebuild its class with smaller fields, nested configs included.

Where fields are lists with one entry per layer, one layer of each combination is kept. Special
token ids move to the top of the small vocabulary, away from the ids that inputs are drawn from.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable
from itertools import count
from typing import Any, final

from transformers import PretrainedConfig

from attncheck.model import compat
from attncheck.targets.shrink.overrides import OVERRIDES, UNSET
from attncheck.targets.shrink.rules import (
    HEAD_DIM,
    HEADS,
    ROTARY_DIM,
    SHARED_HEADS,
    SWITCH,
    VOCAB,
    Wanted,
    keep,
    size_of,
)

LAYER_NUMBERS = re.compile(r".*_indexes")
TOKEN_IDS = re.compile(r".*_token_(id|index)|.*_token_ids")
ORDINARY = 100
"""Token ids below are ordinary tokens of the small vocabulary; special ids beyond a few go above.
"""
FEW = 8
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
ROPE = ("rope_parameters", "rope_scaling")
SECTIONS = "mrope_section"
INHERITED = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id"),
    "layer_types",
)
NOT_SIZES = (
    *("id2label", "label2id", "architectures", "dtype", "torch_dtype", "transformers_version"),
    "use_cache",
)
LISTS_OF_NUMBERS = (
    *("moe_layers", "full_attn_idxs", "hybrid_layer_ids", "cross_attention_layers"),
    *("mlp_only_layers", "ple_layer_ids", "block_types"),
)
"""Lists that name layers by number or repeat a pattern: they have no entry per layer, whatever
their length.
"""


def shrink(config: Any, wanted: Wanted, *, explore: bool = False) -> Any:
    """A small config of the same class. `explore` also switches windows on that the config leaves
    off.

    Raises:
        ValueError, TypeError: the class refuses the small values; its message says which.
    """
    return _Shrinker(wanted, explore).config(config)


@final
class _Shrinker:
    """Walks one config and its nested ones; gives out special ids one after the other."""

    def __init__(self, wanted: Wanted, explore: bool) -> None:
        self.wanted = wanted
        self.explore = explore
        self.numbers = count(1)

    def config(self, config: Any, layers: int | None = None) -> Any:
        kind, names, config = type(config), field_names(type(config)), compat.readable(config)
        per_layer = per_layer_fields(config, names)
        wanted = dataclasses.replace(self.wanted, layers=layers or self.wanted.layers)
        kept = representatives(config, per_layer, wanted.layers) if per_layer else []
        if kept:
            wanted = dataclasses.replace(wanted, layers=len(kept))
        changed = changed_fields(config, names)
        for name in (each for each in names if each not in NOT_SIZES):
            entries, value = kept if name in per_layer else [], getattr(config, name, None)
            value = _with_sections(kind, value) if name in ROPE else value
            changed |= self._field(name, value, wanted, entries, names)
        changed |= _dependent(config, names)
        if self.explore:
            changed |= _windows_on(config, names, changed, wanted)
        if "qk_rope_head_dim" in names:
            changed.pop("head_dim", None)
        changed |= OVERRIDES.get(getattr(kind, "model_type", ""), {})
        return _made(kind, {key: value for key, value in changed.items() if value is not UNSET})

    def _field(
        self, name: str, value: Any, wanted: Wanted, kept: list[int], names: list[str]
    ) -> dict[str, Any]:
        """The field's new value as keyword arguments; nothing where it stays."""
        if isinstance(value, PretrainedConfig):
            return {name: compat.nested_config(self.config(value, min(wanted.layers, 4)))}
        if TOKEN_IDS.fullmatch(name):
            new: Any = self._special(value)
        elif kept:
            new = [_sized(name.replace("_per_layer", ""), value[index], wanted) for index in kept]
        elif name in ROPE:
            new = shrunk_rope(value, latent="qk_rope_head_dim" in names)
        elif isinstance(value, (list, tuple)) and LAYER_NUMBERS.fullmatch(name):
            new = _spread(len(value), wanted.layers)
        elif isinstance(value, (bool, str, dict, list, tuple)):
            return {}
        else:
            new = _sized(name, value, wanted)
        return {name: new} if new != value else {}

    def _special(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._special(each) for each in value]
        if not isinstance(value, int) or isinstance(value, bool) or value < FEW:
            return value
        return ORDINARY + next(self.numbers) % (VOCAB - ORDINARY)


def _spread(count: int, layers: int) -> list[int]:
    """Numbers of layers, at most every second one, that end with the last: what happens in some
    layers only happens in some of the few that are left.
    """
    kept = min(count, max(1, layers // 2))
    return [(number + 1) * layers // kept - 1 for number in range(kept)]


def _made(kind: type, fields: dict[str, Any]) -> Any:
    """A config of these fields; without shared heads where its class allows none."""
    try:
        return kind(**fields)
    except Exception:  # each release has its own class for it
        shared = [name for name in fields if re.fullmatch(SHARED_HEADS, name)]
        if not shared:
            raise
        return kind(**{**fields, **dict.fromkeys(shared, HEADS)})


def field_names(kind: type) -> list[str]:
    """The fields of a config class: dataclass fields, or the arguments of its constructor in
    releases before 5.
    """
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    arguments = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    named = [
        each.name for each in arguments if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return list(dict.fromkeys([*named[1:], *INHERITED]))


def changed_fields(config: Any, names: list[str]) -> dict[str, Any]:
    """The fields in which a config differs from the default of its class: what a real config.json
    says.
    """
    plain = {name: getattr(config, name, None) for name in names if name != "transformers_version"}
    try:
        usual = compat.readable(type(config)())
    except Exception:
        return plain
    return {
        name: value
        for name, value in plain.items()
        if not isinstance(value, PretrainedConfig) and value != getattr(usual, name, None)
    }


def layers_of(config: Any) -> int | None:
    """The number of layers that a config names."""
    values = (getattr(config, name, None) for name in DEPTHS)
    return next((value for value in values if isinstance(value, int)), None)


def per_layer_fields(config: Any, names: Iterable[str]) -> list[str]:
    """The fields that hold one entry per layer."""
    layers = layers_of(config)
    if layers is None or layers <= 2:
        return []
    values = {name: getattr(config, name, None) for name in names if name not in LISTS_OF_NUMBERS}
    return [
        name
        for name, value in values.items()
        if isinstance(value, (list, tuple)) and len(value) == layers
    ]


def representatives(config: Any, per_layer: list[str], wanted: int) -> list[int]:
    """Numbers of the layers to keep: the first of each combination of per-layer entries, then more
    up to `wanted`.
    """
    total = layers_of(config) or 0
    kinds = {
        tuple(repr(getattr(config, name)[layer]) for name in per_layer): layer
        for layer in reversed(range(total))
    }
    first = sorted(kinds.values())
    others = [layer for layer in range(total) if layer not in first]
    return sorted([*first, *others[: max(0, wanted - len(first))]])


def _sized(name: str, value: Any, wanted: Wanted) -> Any:
    rule = size_of(name)
    kept = rule is keep or value is None or isinstance(value, (bool, str))
    return value if kept else rule(value, wanted)


def _dependent(config: Any, names: list[str]) -> dict[str, Any]:
    """Fields that depend on others."""
    found: dict[str, Any] = {}
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        found["num_key_value_heads"] = HEADS  # in latent attention every head has its own key
    if "n_group" in names and getattr(config, "n_group", None):
        found |= {"n_group": 1, "topk_group": 1}  # few experts leave no choice between groups
    switches = any(_has_length_switch(getattr(config, name, None)) for name in ROPE)
    if switches and "max_position_embeddings" in names:
        found["max_position_embeddings"] = SWITCH  # short enough for inputs to cross it
    return found


def _windows_on(
    config: Any, names: list[str], changed: dict[str, Any], wanted: Wanted
) -> dict[str, Any]:
    """A sliding window that the class offers and its default leaves off, in every second layer
    where layers have types.

    Without types it would be on in every layer and hide the path without a mask: then only a switch
    of its own turns it on.
    """
    if "sliding_window" not in names or getattr(config, "sliding_window", None) is not None:
        return {}
    types = changed.get("layer_types", getattr(config, "layer_types", None)) or ()
    switch = "use_sliding_window" in names
    if not (types or switch) or any("sliding" in kind for kind in types):
        return {}
    switched: dict[str, Any] = {"sliding_window": wanted.window}
    if switch:
        switched["use_sliding_window"] = True
    if types:
        slid = {"full_attention": "sliding_attention", "hybrid": "hybrid_sliding"}
        switched["layer_types"] = [
            kind if number % 2 else slid.get(kind, kind) for number, kind in enumerate(types)
        ]
    return switched


def _with_sections(kind: type, table: Any) -> Any:
    """A rotary table of a class that divides pairs into time, height and width, with a division:
    the one that such classes fall back to fits no small head.
    """
    divided = SECTIONS in getattr(kind, "ignore_keys_at_rope_validation", ())
    return {SECTIONS: [1, 1, 1], **table} if divided and isinstance(table, dict) else table


def shrunk_rope(table: Any, *, latent: bool) -> Any:
    """A rotary table for a small head; anything else unchanged."""
    if not isinstance(table, dict):
        return table
    width = ROTARY_DIM if latent else HEAD_DIM
    pairs = int(width * table.get("partial_rotary_factor", 1.0)) // 2
    return {key: _rope_entry(key, value, pairs, latent) for key, value in table.items()}


def _rope_entry(key: str, value: Any, pairs: int, latent: bool) -> Any:
    if isinstance(value, dict):
        return shrunk_rope(value, latent=latent)
    if key == SECTIONS and value:
        share, rest = divmod(pairs, len(value))
        return [share + (number < rest) for number in range(len(value))]
    if key in ("short_factor", "long_factor") and value:
        return list(value)[:pairs]
    if key == "original_max_position_embeddings" and value:
        return min(value, SWITCH)
    return value


def _has_length_switch(table: Any) -> bool:
    """Whether a rotary table changes where the trained length ends (dynamic NTK)."""
    return isinstance(table, dict) and "dynamic" in (table.get("rope_type"), table.get("type"))
