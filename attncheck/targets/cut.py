"""The first layers of a real model: its config cut short, and what the checkpoint then has left
over.
"""

from __future__ import annotations

from typing import Any

from attncheck.attention.layers import layer_number
from attncheck.core.errors import TargetError
from attncheck.model.compat import text_config
from attncheck.targets.shrink.shrink import DEPTHS, field_names, layers_of, per_layer_fields


def cut_layers(config: Any, layers: int) -> Any:
    """The same config with its first `layers` layers, in place; lists with one entry a layer are
    cut with it.

    Raises:
        TargetError: the config names no number of layers, or has fewer.
    """
    text = text_config(config)
    total = layers_of(text)
    if total is None or not 0 < layers <= total:
        raise TargetError(
            f"`--layers {layers}`: the model has {total if total is not None else 'no number of'} layers"
        )
    for name in per_layer_fields(text, field_names(type(text))):
        setattr(text, name, list(getattr(text, name))[:layers])
    for name in DEPTHS:
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, layers)
    return config


def beyond(name: str, layers: int) -> bool:
    """Whether a weight belongs to a layer that was cut off."""
    number = layer_number(name.rpartition(".")[0])
    return number is not None and number >= layers
