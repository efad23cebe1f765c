"""Bamba counts its default positions from 0 in every cached call. Expected: the logits of one
forward.
"""

import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
config = BambaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2,
    attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8,
    mamba_chunk_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = BambaForCausalLM(config).double().eval()
for parameter in model.parameters():
    if parameter.ndim > 1:
        parameter.data.normal_(0, 0.3)
row = torch.randint(3, 64, (1, 12))
with torch.no_grad():
    whole = model(row, use_cache=False).logits
    cache = model(row[:, :8], use_cache=True).cache
    steps = [model(row[:, i : i + 1], cache=cache, use_cache=True).logits for i in range(8, 12)]
print("observed", (torch.cat(steps, 1) - whole[:, 8:]).abs().max().item())
