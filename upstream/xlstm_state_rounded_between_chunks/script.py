"""xLSTM rounds its state to bfloat16 between two inference chunks. Expected: a long row gives the
logits that it gives in one chunk.
"""

import torch
from transformers import xLSTMConfig, xLSTMForCausalLM


def logits(chunk: int, row: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    config = xLSTMConfig(
        vocab_size=64, hidden_size=64, num_blocks=2, num_hidden_layers=2, num_heads=4,
        qk_dim_factor=1.0, ffn_round_up_to_multiple_of=16, chunk_size=8,
        max_inference_chunksize=chunk,
    )  # fmt: skip
    model = xLSTMForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    with torch.no_grad():
        return model(row, use_cache=False).logits


row = torch.randint(3, 64, (1, 24), generator=torch.Generator().manual_seed(1))
print("observed", (logits(8, row) - logits(64, row)).abs().max().item())
