"""A training step of xLSTM as it is released raises: with `use_cache` left at its default the state
is copied in place, and the backward pass needs what was there. Expected: the gradient of the loss
with the cache off.
"""

import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

torch.manual_seed(0)
config = xLSTMConfig(
    vocab_size=64, hidden_size=64, num_blocks=2, num_hidden_layers=2, num_heads=4,
    qk_dim_factor=1.0, ffn_round_up_to_multiple_of=16, chunk_size=8,
)  # fmt: skip
model = xLSTMForCausalLM(config).train()
row = torch.randint(3, 64, (1, 12))


def gradient(**given: bool) -> torch.Tensor:
    model.zero_grad()
    model(row, labels=row, **given).loss.backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


try:
    print("observed", (gradient() - gradient(use_cache=False)).abs().max().item())
except RuntimeError as error:
    print("observed inf", str(error)[:100])
