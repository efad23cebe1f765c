"""NLLB-MoE on a static cache: the attention mask goes to the experts' router as a padding mask.

`self.ffn(hidden_states, attention_mask)` hands the 4D mask of self-attention to the router, which
drops tokens by it; on a static cache that mask exists and is as wide as the buffer. The number is the
largest logit difference between one forward without a cache and the same on a static cache.
"""

import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
    StaticCache,
)

SIZE = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "expert_capacity": 64,
    "encoder_sparse_step": 0,
    "decoder_start_token_id": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def apart(static: bool, sparse: int) -> float:
    torch.manual_seed(0)
    config = NllbMoeConfig(**SIZE, decoder_sparse_step=sparse)
    model = NllbMoeForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    source, row = (
        torch.randint(5, 64, (1, 8), generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    own = StaticCache(config=config, max_cache_len=16) if static else DynamicCache(config=config)
    cache = EncoderDecoderCache(own, DynamicCache(config=config))
    with torch.no_grad():
        whole = model(input_ids=source, decoder_input_ids=row, use_cache=False).logits
        cached = model(input_ids=source, decoder_input_ids=row, cache=cache, use_cache=True).logits
    return (cached - whole).abs().max().item()


def main() -> dict[str, float]:
    return {
        "static cache": apart(static=True, sparse=1),
        "dynamic cache": apart(static=False, sparse=1),
        "static cache without experts": apart(static=True, sparse=0),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
