"""Inkling on a static cache: the relative bias is computed from positions that have already moved
on.

`q_offset` is taken from the cache before it is updated, but a static cache hands out the live
tensor that the update then increases: queries seem to be one chunk further than they are. The
number is the largest logit difference between one forward without a cache and 6 + 6 tokens on a
static one; on a dynamic cache, whose length is a number, they agree.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SIZE |= {
    "head_dim": 8,
    "d_rel": 8,
    "rel_extent": 32,
    "sliding_window_size": 32,
    "layer_types": ["hybrid"] * 2,
}
SIZE |= {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "unpadded_vocab_size": None,
}
SIZE |= {
    "intermediate_size": 48,
    "moe_intermediate_size": 48,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
}
SIZE |= {
    "mlp_layer_types": ["dense"] * 2,
    "logits_mup_width_multiplier": 1.0,
    "max_position_embeddings": 64,
}


def apart(static: bool) -> float:
    torch.manual_seed(0)
    config = AutoConfig.for_model("inkling_text", **SIZE)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row = torch.randint(5, 64, (1, 12), generator=torch.Generator().manual_seed(1))
    cache = StaticCache(config=config, max_cache_len=12) if static else DynamicCache(config=config)
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        logits = [model(piece, cache=cache, use_cache=True).logits for piece in row.split(6, 1)]
    return (torch.cat(logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    return {"static cache": apart(static=True), "dynamic cache": apart(static=False)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
