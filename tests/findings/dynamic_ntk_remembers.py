"""Dynamic NTK: a prompt just past the trained length is answered differently after a longer one.

The rotary buffer grows with the longest row seen and goes back only for rows within the trained
length. The number is the largest logit difference of the same 20-token row before and after a row
of 40 tokens (trained length 16); within the trained length there is none.
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
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}


def apart(length: int) -> float:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(**SIZE, max_position_embeddings=16, rope_parameters=DYNAMIC)
    ).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = model(row[:, :length], use_cache=False).logits
        model(row, use_cache=False)
        return (model(row[:, :length], use_cache=False).logits - before).abs().max().item()


def main() -> dict[str, float]:
    return {"20 tokens": apart(20), "12 tokens": apart(12)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
