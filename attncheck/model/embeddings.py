"""The table that token ids are looked up in."""

from __future__ import annotations

from typing import Any

from torch import nn

from attncheck.model.compat import config_of, text_config


def token_table(model: Any) -> Any:
    """The input embedding as the model names it, otherwise its first table of the vocabulary's
    size, otherwise its first table; None without one.
    """
    try:
        named = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        named = None
    if named is not None:
        return named
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    size = getattr(text_config(config_of(model)), "vocab_size", None)
    sized = [each for each in tables if each.num_embeddings == size]
    return next(iter([*sized, *tables]), None)
