"""CTRL scales `inputs_embeds` in place: the caller's tensor changes, and the next call answers
another question. Expected: two equal calls give equal logits.
"""

import torch
from transformers import CTRLConfig, CTRLLMHeadModel

torch.manual_seed(0)
config = CTRLConfig(vocab_size=64, n_positions=64, n_embd=32, dff=48, n_layer=2, n_head=4)
model = CTRLLMHeadModel(config).double().eval()
for parameter in model.parameters():
    if parameter.ndim > 1:
        parameter.data.normal_(0, 0.3)
embeds = torch.randn(1, 12, 32, dtype=torch.float64)
with torch.no_grad():
    first, second = (model(inputs_embeds=embeds, use_cache=False).logits for _ in range(2))
print("observed", (first - second).abs().max().item())
