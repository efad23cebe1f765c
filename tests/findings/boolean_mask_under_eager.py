"""Eager attention adds a boolean 4D mask to the scores, as 0 and 1: nothing is masked.

The number is the largest logit difference between a causal 4D mask of booleans and the same mask of
floats; sdpa gives 0.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def apart(attn: str) -> float:
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(LlamaConfig(**SIZE), attn_implementation=attn).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, 10), generator=torch.Generator().manual_seed(1))
    allowed = torch.ones(1, 1, 10, 10, dtype=torch.bool).tril()
    added = torch.zeros(1, 1, 10, 10).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        one, two = (
            model(row, attention_mask=mask, use_cache=False).logits for mask in (allowed, added)
        )
    return (one - two).abs().max().item()


def main() -> dict[str, float]:
    return {"eager": apart("eager"), "sdpa": apart("sdpa")}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
