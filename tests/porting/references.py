"""Tiny transformers models of the families that people port, weights drawn so that faults show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from attncheck.targets.amplify import amplify

SIZE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA: dict[str, Any] = {
    **SIZE,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 80,
}


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**GQA, **_rope(500000.0)),
    "llama3": lambda: transformers.LlamaConfig(
        **GQA, tie_word_embeddings=True, rope_parameters={"rope_theta": 500000.0, **LLAMA3}
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        **GQA, **_rope(1000000.0), use_sliding_window=False, tie_word_embeddings=False
    ),
    "qwen3": lambda: transformers.Qwen3Config(**GQA, **_rope(1000000.0)),
    "gemma2": lambda: transformers.Gemma2Config(
        **GQA,
        sliding_window=8,
        query_pre_attn_scalar=24,
        layer_types=LAYER_TYPES,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=6.0,
        **_rope(10000.0),
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **GQA,
        sliding_window=8,
        query_pre_attn_scalar=24,
        layer_types=LAYER_TYPES,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        },
    ),
    "mistral": lambda: transformers.MistralConfig(**GQA, sliding_window=8, **_rope(10000.0)),
    "mixtral": lambda: transformers.MixtralConfig(
        **GQA, num_local_experts=4, num_experts_per_tok=2, sliding_window=None, **_rope(1000000.0)
    ),
    "phi": lambda: transformers.PhiConfig(
        **SIZE,
        intermediate_size=80,
        **_rope(10000.0, partial_rotary_factor=0.5),
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=96,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def reference(family: str, attn: str = "eager", seed: int = 0) -> Any:
    """A transformers model of one family."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[family](), attn_implementation=attn, dtype=torch.float32
    )
    amplify(model, seed)
    return model.eval()
