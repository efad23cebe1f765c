"""Llama 4 scales the queries of layers without rotation by slot and not by position: left padding
moves the logits. Expected: a row beside its padding gives the logits that it gives alone.
"""

import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig

torch.manual_seed(0)
config = Llama4TextConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, intermediate_size_mlp=48,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    num_local_experts=2, floor_scale=4, attention_chunk_size=64, no_rope_layers=[0, 0],
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = Llama4ForCausalLM(config).double().eval()
for parameter in model.parameters():
    if parameter.ndim > 1:
        parameter.data.normal_(0, 0.3)
row = torch.randint(3, 64, (1, 12))
padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), row], 1)
mask = (torch.arange(17) >= 5).long()[None]
positions = (mask.cumsum(1) - 1).clamp(min=0)
with torch.no_grad():
    alone = model(row, use_cache=False).logits
    beside = model(padded, attention_mask=mask, position_ids=positions, use_cache=False).logits
print("observed", (alone - beside[:, 5:]).abs().max().item())
