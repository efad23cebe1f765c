"""A training step with reentrant checkpoints, and `use_cache` left as it is.

Each layer is computed again in the backward pass, on a cache that its first computation has filled
already. The library turns the cache off in layers that it checkpoints itself; RoFormer keeps its
own, and so does the part of Gemma 3n whose layers share keys.
The number is the largest difference of a gradient from that without checkpoints; infinite where the
step raises.
"""

import math

import torch
from transformers import (
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    RoFormerConfig,
    RoFormerForCausalLM,
)

ROWS = torch.randint(5, 60, (2, 12), generator=torch.Generator().manual_seed(1))
SIZE = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(ROWS, labels=ROWS).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def difference(model: torch.nn.Module) -> float:
    model = model.train()
    right = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    try:
        found = gradients(model)
    except RuntimeError:
        return math.inf
    return max(float((found[n] - right[n]).abs().max()) for n in right)


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZE, num_hidden_layers=2, num_key_value_heads=2))


def roformer() -> torch.nn.Module:
    config = RoFormerConfig(
        **SIZE,
        num_hidden_layers=2,
        is_decoder=True,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return RoFormerForCausalLM(config)


def gemma3n() -> torch.nn.Module:
    config = Gemma3nTextConfig(
        **{**SIZE, "intermediate_size": [48] * 4},
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=8,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
    )
    return Gemma3nForCausalLM(config)


def main() -> dict[str, float]:
    found = {}
    for build in (roformer, gemma3n, llama):
        torch.manual_seed(0)
        found[build.__name__] = difference(build())
    return found


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
