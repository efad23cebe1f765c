"""Packed rows are isolated in one way of calling and leak in two that look the same.

Positions that restart isolate documents without a mask and with `use_cache=False`. With the cache
at its default, or beside a 2D mask of ones, document 2 reads document 1. The number is how far its
logits move when the first document is replaced.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}


def leak(model: torch.nn.Module, **options: object) -> float:
    a, other, b = torch.randint(5, 64, (3, 7), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(7), torch.arange(7)])[None]
    with torch.no_grad():
        one, two = (
            model(torch.cat([first, b])[None], position_ids=positions, **options).logits[:, 7:]
            for first in (a, other)
        )
    return (one - two).abs().max().item()


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZE)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return {
        "default cache": leak(model),
        "2D mask of ones": leak(
            model, use_cache=False, attention_mask=torch.ones(1, 14, dtype=torch.long)
        ),
        "no mask, cache off": leak(model, use_cache=False),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
