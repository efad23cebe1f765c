"""xLSTM rounds its state to bfloat16 between two inference chunks.

Beyond `max_inference_chunksize` tokens a forward in evaluation runs chunk by chunk on a cache that
it makes without a dtype, and xLSTMCache then takes bfloat16. The number is the largest logit
difference of a row of 24 tokens between chunks of 8 and one chunk; a row of 8 has none.
"""

import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_blocks": 2,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "qk_dim_factor": 1.0,
    "ffn_round_up_to_multiple_of": 16,
    "chunk_size": 8,
}


def logits(chunk: int, row: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    model = xLSTMForCausalLM(xLSTMConfig(**SIZE, max_inference_chunksize=chunk)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    with torch.no_grad():
        return model(row, use_cache=False).logits


def apart(length: int) -> float:
    row = torch.randint(3, 64, (1, length), generator=torch.Generator().manual_seed(1))
    return float((logits(8, row) - logits(64, row)).abs().max())


def main() -> dict[str, float]:
    return {"24 tokens": apart(24), "8 tokens": apart(8)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
