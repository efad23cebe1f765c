"""Which decoder layer a module or a tensor belongs to, and which modules are attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

MEMBER = re.compile(r"(.*\.)?\d+")
LAYER = re.compile(r"((?:.*\.)?(?:h|\w*(?:layers?|blocks?|stack)))\.(\d+)")
FUSED = "query, key and value"
BEFORE = r"(?:(?:w|to|c|in|proj|lin|linear|fc)_?)?"
BEHIND = r"(?:_?(?:proj|projection|lin|linear|layer|attn|net|fc|map|[ab]_proj))?"
"""What stands before and behind q, k and v in the names of projections."""
PROJECTIONS = {
    "query": re.compile(rf"^{BEFORE}(q|query|queries){BEHIND}$", re.I),
    "key": re.compile(rf"^{BEFORE}(k|key|keys|kv)({BEHIND}|_[ab]|_a_proj_with_mqa)$", re.I),
    "value": re.compile(rf"^{BEFORE}(v|value|values){BEHIND}$", re.I),
    FUSED: re.compile(rf"^(c_attn|in_proj|{BEFORE}(qkv|query_key_value){BEHIND})$", re.I),
}
"""The names under which models keep each projection."""


def layer_number(path: str | Sequence[str]) -> int | None:
    """The first number in a dotted path, or in its parts: the layer, in every model that keeps its
    layers in a list.
    """
    parts = path.split(".") if isinstance(path, str) else path
    return next((int(part) for part in parts if part.isdecimal()), None)


def layer_index(module: nn.Module, name: str) -> int | None:
    """Which decoder layer a module belongs to: its own `layer_idx`, otherwise its path's number."""
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int) and not isinstance(index, bool):
        return index
    return layer_number(name)


def is_list_member(name: str) -> bool:
    """Whether a path ends in a number, as that of a layer in a list of layers does."""
    return MEMBER.fullmatch(name) is not None


def layer_lists(model: nn.Module) -> list[list[nn.Module]]:
    """The numbered lists of layers in a model, each in the order of its numbers."""
    lists: dict[str, dict[int, nn.Module]] = {}
    for name, module in model.named_modules():
        if match := LAYER.fullmatch(name):
            lists.setdefault(match.group(1), {})[int(match.group(2))] = module
    return [[layers[number] for number in sorted(layers)] for layers in lists.values()]


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that own a query projection, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(
            PROJECTIONS[kind].match(child)
            for child, _ in module.named_children()
            for kind in ("query", FUSED)
        )
    }


def key_value_projections(model: nn.Module) -> list[nn.Module]:
    """The modules that project keys or values, alone or beside queries."""
    patterns = [PROJECTIONS[kind] for kind in ("key", "value", FUSED)]
    return [
        child
        for module in attention_modules(model).values()
        for name, child in module.named_children()
        if any(pattern.match(name) for pattern in patterns)
    ]


def of_layer(value: Any, index: int | None) -> Any:
    """A config field's value for one layer: a list holds one entry for each."""
    if isinstance(value, (list, tuple)):
        return value[index] if index is not None and index < len(value) else None
    return value


def layer_type(config: Any, index: int | None) -> str | None:
    """The entry of one layer in the config's `layer_types`."""
    types = getattr(config, "layer_types", None)
    entry = of_layer(types, index) if isinstance(types, (list, tuple)) else None
    return None if entry is None else str(entry)
