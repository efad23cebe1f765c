"""What an encoder-decoder model's encoder reads: one input that stays the same in every call.

The decoder under a fixed encoder input is a decoder like any other. Axes: B batch, S encoder
positions, W hidden width.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.model.compat import text_config
from attncheck.model.facts import first_int

LENGTH = 11
WIDTHS = ("d_model", "hidden_size")
SEED = 17


def fixed_input(model: nn.Module, pool: tuple[int, ...]) -> dict[str, Any]:
    """Keyword arguments that every forward gets; empty for a model without an encoder in front of
    its decoder.

    Token ids (1, S) where the encoder reads ids, a drawn encoder output (1, S, W) where it reads
    sound or pictures.
    """
    config = getattr(model, "config", None)
    parameters = inspect.signature(model.forward).parameters
    if not getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" not in parameters:
        return {}
    generator = torch.Generator().manual_seed(SEED)
    if getattr(model, "main_input_name", "input_ids") == "input_ids":
        chosen_S = torch.randint(len(pool), (LENGTH,), generator=generator)
        return {"input_ids": torch.tensor([[pool[int(index)] for index in chosen_S]])}
    width = first_int(config, WIDTHS) or first_int(text_config(config), WIDTHS) or 1
    return {
        "encoder_outputs": (
            torch.randn(1, LENGTH, width, generator=generator, dtype=torch.float64),
        )
    }


def for_rows(value: Any, like_BT: Tensor, dtype: torch.dtype) -> Any:
    """A fixed argument for as many rows as a call has, on its device; what is not ids takes the
    model's dtype.
    """
    if isinstance(value, tuple):
        return tuple(for_rows(each, like_BT, dtype) for each in value)
    if not isinstance(value, Tensor):
        return value
    moved = value.to(like_BT.device, dtype if value.is_floating_point() else value.dtype)
    return moved.expand(like_BT.shape[0], *moved.shape[1:])
