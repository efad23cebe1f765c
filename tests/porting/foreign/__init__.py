"""Ports written by hand without a look at how `compare` names faults, each in a style of its own and
correct or with one mistake: what is measured on them was not known when they were written.

Their code is left as its author would have it, untyped and unformatted.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from porting.foreign.originals import original

MODULES = {
    "bart": "bart",
    "bert": "bert",
    "bloom": "bloom",
    "codegen": "codegen",
    "cohere": "cohere",
    "deepseek_v3": "deepseek",
    "exaone4": "exaone4",
    "falcon": "falcon",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "glm": "glm",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gpt_neo": "gpt_neo",
    "gpt_neox": "neox",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "lfm2": "lfm2",
    "llama": "litllama",
    "mamba": "mamba",
    "olmo2": "olmo2",
    "opt": "opt",
    "persimmon": "persimmon",
    "phi3": "phi3",
    "qwen2_moe": "qwen2_moe",
    "qwen3_moe": "qwen3moe",
    "roberta": "roberta",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "t5": "t5",
}


STYLES = {
    "bert": "fused",
    "falcon": "fused",
    "gptj": "complex",
    "opt": "batch-first",
    "phi3": "one-matmul",
}
"""Another right way to write the port of a family."""


def restyled(family: str) -> tuple[Any, Any]:
    """The original, and its right port in the other style."""
    port = import_module(f"porting.foreign.{MODULES[family]}").port
    return original(family), port(original(family), "", STYLES[family])


def faults(family: str) -> tuple[str, ...]:
    """The mistakes that the port of a family can have."""
    found: tuple[str, ...] = import_module(f"porting.foreign.{MODULES[family]}").FAULTS
    return found


def foreign(family: str, fault: str = "") -> tuple[Any, Any]:
    """The original, and its port with a mistake or without one."""
    port = import_module(f"porting.foreign.{MODULES[family]}").port
    return original(family), port(original(family), fault)
