"""Falcon: asking for the attention weights takes the causal mask away.

Under sdpa the mask builder returns no mask, or booleans; the branch for `output_attentions=True`
adds it to the scores. The number is the largest logit difference between the same forward with and
without `output_attentions=True`.
"""

import torch
from transformers import FalconConfig, FalconForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "alibi": False,
}


def apart(length: int) -> float:
    torch.manual_seed(0)
    model = FalconForCausalLM(FalconConfig(**SIZE)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = model(row, use_cache=False).logits
        asked = model(row, use_cache=False, output_attentions=True).logits
    return (plain - asked).abs().max().item()


def main() -> dict[str, float]:
    return {"12 tokens": apart(12), "one token": apart(1)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
