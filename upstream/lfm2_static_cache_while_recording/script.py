"""A step on a static cache that records its past reads the empty slots: such a cache is not
`is_compileable`, which the mask builder takes for "has no empty slots". Assisted generation records
the past of LFM2 so that it can crop. Expected: the logits of one forward.
"""

import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, StaticCache

torch.manual_seed(0)
config = Lfm2Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"],
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = Lfm2ForCausalLM(config).double().eval()
for parameter in model.parameters():
    if parameter.ndim > 1:
        parameter.data.normal_(0, 0.3)
row = torch.randint(3, 64, (1, 12))
with torch.no_grad():
    whole = model(row, use_cache=False).logits
    cache = StaticCache(config=config, max_cache_len=32)
    cache.activate_past_recording()
    model(row[:, :8], cache=cache, use_cache=True)
    model(row[:, 2:4], cache=cache, use_cache=True)
    cache.crop(-2)
    steps = [model(row[:, i : i + 1], cache=cache, use_cache=True).logits for i in range(8, 12)]
print("observed", (torch.cat(steps, 1) - whole[:, 8:]).abs().max().item())
