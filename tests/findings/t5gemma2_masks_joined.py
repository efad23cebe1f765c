"""T5Gemma 2's decoder under a 4D float mask and sdpa: the encoder's boolean mask is added as numbers.

Self-attention and cross-attention share one kernel, whose mask is `torch.cat` of both. The mask for
the encoder is boolean under sdpa; joined with a float mask, it becomes 0 and 1, which hides nothing.
The number is the largest change of the logits when encoder tokens that the encoder's mask hides are
replaced, beside a causal 4D mask for the decoder.
"""

import torch
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration

TEXT = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "max_position_embeddings": 64,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"],
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
TOKENS = {"boi_token_index": 101, "eoi_token_index": 102, "image_token_index": 104}


def moved(attn: str, explicit: bool) -> float:
    torch.manual_seed(0)
    encoder = {"text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 4, **TOKENS}
    config = T5Gemma2Config(encoder=encoder, decoder=TEXT, image_token_index=104)
    model = T5Gemma2ForConditionalGeneration(config).eval()
    model.set_attn_implementation(attn)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    source, row = (
        torch.randint(5, 100, (1, 8), generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    changed = source.clone()
    changed[:, 5:] = source[:, 5:].flip(1) + 1
    seen = torch.ones_like(source)
    seen[:, 5:] = 0
    causal = torch.full((1, 1, 8, 8), torch.finfo(torch.float32).min).triu(1)
    call = {
        "decoder_input_ids": row,
        "attention_mask": seen,
        "decoder_attention_mask": causal if explicit else None,
        "use_cache": False,
    }
    with torch.no_grad():
        before, after = (model(input_ids=each, **call).logits for each in (source, changed))
    return (after - before).abs().max().item()


def main() -> dict[str, float]:
    return {
        "sdpa, 4D mask": moved("sdpa", explicit=True),
        "sdpa, no mask": moved("sdpa", explicit=False),
        "eager, 4D mask": moved("eager", explicit=True),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
