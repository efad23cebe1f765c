"""Bamba: a cached forward without `position_ids` counts from 0 again.

The default positions ignore the length of the cache; with explicit positions the same forwards
agree. falcon_h1, the control, counts on. The number is the largest logit difference between one
forward and 8 + 1 + 1 + 1 tokens on a cache.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_state": 4,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
    "pad_token_id": 0,
}
TYPES = {
    "bamba": SIZE | MAMBA | {"attn_layer_indices": [1], "mamba_d_head": 16},
    "falcon_h1": SIZE | MAMBA | {"head_dim": 8, "mamba_d_ssm": 32, "mamba_d_head": 8},
}


def apart(kind: str, fields: dict, explicit: bool) -> float:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row = torch.randint(3, 64, (1, 11), generator=torch.Generator().manual_seed(1))
    cache, logits = None, []
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        for start, stop in ((0, 8), (8, 9), (9, 10), (10, 11)):
            given = {"position_ids": torch.arange(start, stop)[None]} if explicit else {}
            out = model(row[:, start:stop], use_cache=True, cache=cache, **given)
            cache, logits = out.cache, [*logits, out.logits]
    return (torch.cat(logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    return {
        "bamba": apart("bamba", TYPES["bamba"], explicit=False),
        "bamba with explicit positions": apart("bamba", TYPES["bamba"], explicit=True),
        "falcon_h1": apart("falcon_h1", TYPES["falcon_h1"], explicit=False),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:30s} {number:.2g}")
