"""Selecting rows of a hybrid cache selects keys and values and leaves recurrent states: the next
step raises. Expected: the logits of the selected row.
"""

import torch
from transformers import FalconH1Config, FalconH1ForCausalLM

torch.manual_seed(0)
config = FalconH1Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8,
    mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = FalconH1ForCausalLM(config).double().eval()
rows = torch.randint(3, 64, (3, 12))
with torch.no_grad():
    whole = model(rows, use_cache=False).logits
    cache = model(rows[:, :8], use_cache=True).cache
    try:
        cache.batch_select_indices(torch.tensor([2]))
        cache.batch_repeat_interleave(2)
        step = model(rows[[2, 2], 8:9], cache=cache, use_cache=True).logits
        print("observed", (step - whole[[2, 2], 8:9]).abs().max().item())
    except RuntimeError as error:
        print("observed inf", str(error)[:100])
