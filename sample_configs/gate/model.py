"""The model of this repository, small and with fixed weights: what pull requests may not change."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention


class Attention(LlamaAttention):
    """Attention of one layer."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **named: Any) -> Any:
        """The output and the weights."""
        output, weights = super().forward(hidden_states, *args, **named)
        return output, weights


def build() -> LlamaForCausalLM:
    """Two layers, seeded."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    for number, layer in enumerate(model.model.layers):
        attention = Attention(config, number)
        attention.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = attention
    return model
