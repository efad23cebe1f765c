"""The tables that token ids and positions are looked up in."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from attncheck.model.compat import config_of, text_config
from attncheck.numerics.hooks import hooked

SHORT = 4
"""Tokens that show which table positions are looked up in."""


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


def position_rows(model: nn.Module) -> int | None:
    """How many positions the table holds that a short forward looks consecutive numbers up in; None
    where none is seen.
    """
    found: list[int] = []

    def hook(table: nn.Embedding, args: Any, output: Any) -> None:
        first = args[0].flatten()[:SHORT] if args else torch.empty(0)
        if first.numel() == SHORT and bool((first.diff() == 1).all()):
            found.append(table.num_embeddings - int(first[0]))

    tables = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    handles = [each.register_forward_hook(hook) for each in tables]
    with contextlib.suppress(Exception), torch.no_grad(), hooked(handles):
        model(torch.zeros(1, SHORT, dtype=torch.int64))
    return min(found, default=None)
