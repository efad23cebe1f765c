"""Read an adapter (LoRA and its kin) from a folder, and find the layers that carry one.

An adapted layer is recognized by its methods (`merge`, `unmerge`, `get_base_layer`), so that PEFT
is imported only where an adapter is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from attncheck.core.errors import TargetError, first_line

FILE = "adapter_config.json"
COMPILED = (
    "torch.compile: the model inside is checked; `--compile` compares the compiled one with it"
)
MARKS = ("merge", "unmerge", "get_base_layer", "enable_adapters")


def base_of(folder: Path) -> str:
    """The target that an adapter was made for.

    Raises:
        TargetError: its config cannot be read or names none.
    """
    try:
        base = json.loads((folder / FILE).read_text(encoding="utf-8")).get(
            "base_model_name_or_path"
        )
    except (OSError, ValueError, AttributeError) as error:
        raise TargetError(f"{folder / FILE}: {first_line(error)}") from error
    if not base:
        raise TargetError(
            f"{folder / FILE} does not say which model the adapter is for "
            "(`base_model_name_or_path`)"
        )
    return str(base)


def adapted(model: nn.Module, folder: Path) -> nn.Module:
    """A model with an adapter put into its layers.

    Raises:
        TargetError: PEFT is not installed.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise TargetError("an adapter needs PEFT: pip install 'attncheck[adapters]'") from error
    return without_wrapper(PeftModel.from_pretrained(model, str(folder)))


def without_wrapper(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's wrapper, or inside PEFT's own class: that one names fewer
    arguments than the model, and where layers carry the adapter it computes the same.
    """
    return unwrapped(model)[0]


def unwrapped(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """`without_wrapper`, and what is not checked for it."""
    compiled = getattr(model, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        inner, remarks = unwrapped(compiled)
        return inner, (*remarks, COMPILED)
    inside = getattr(model, "get_base_model", None)
    if not callable(inside) or not hasattr(model, "peft_config"):
        return model, ()
    if adapted_layers(model):
        return inside(), ()
    config = getattr(model, "active_peft_config", None)
    if not getattr(config, "is_prompt_learning", False):
        return model, ()
    kind, tokens = type(config).__name__, getattr(config, "num_virtual_tokens", "some")
    words = f"{kind}: the model is checked without the {tokens} virtual tokens in front of each row"
    return inside(), (words,)


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that carry an adapter, by name."""
    return {
        name: each
        for name, each in model.named_modules()
        if all(callable(getattr(each, mark, None)) for mark in MARKS)
    }
