"""Left padding with its 2D mask and logical positions, as generate() passes them: these types read
the padding all the same.

llama4 scales queries by the slot instead of the position (`attn_temperature_tuning`); deepseek_v4
compresses blocks of slots, and minimax_m3 chooses blocks of slots, padding included;
recurrent_gemma convolves over it; git shifts the mask of a cached step by the picture tokens that a
text-only cache does not hold. The number is the largest logit difference between one prompt alone
and the same prompt behind 3 padding tokens (git: at a cached step); llama, the control, gives
rounding.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GitVisionConfig

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
SIZE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64}
LLAMA4 = SIZE | {
    "head_dim": 8,
    "num_local_experts": 2,
    "intermediate_size_mlp": 48,
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 64,
}
LLAMA4 |= {"layer_types": ["chunked_attention", "full_attention"], "moe_layers": []}
GIT = SIZE | {
    "num_image_with_embedding": None,
    "vision_config": GitVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
    ).to_dict(),
}
DEEPSEEK = {
    "num_key_value_heads": 1,
    "head_dim": 16,
    "q_lora_rank": 16,
    "o_lora_rank": 16,
    "o_groups": 2,
    "qk_rope_head_dim": 8,
    "index_n_heads": 8,
}
DEEPSEEK |= {
    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
    "mlp_layer_types": ["moe"] * 2,
}
DEEPSEEK |= {
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    "partial_rotary_factor": 0.5,
}
DEEPSEEK |= {
    "moe_intermediate_size": 48,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "index_head_dim": 16,
    "index_topk": 8,
    "sliding_window": 8,
}
MINIMAX = {
    "head_dim": 16,
    "rotary_dim": 8,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "index_n_heads": 2,
    "index_head_dim": 16,
}
MINIMAX |= {
    "index_block_size": 4,
    "index_topk_blocks": 2,
    "index_local_blocks": 1,
    "layer_types": ["minimax_m3_sparse"] * 2,
}
MINIMAX |= {
    "mlp_layer_types": ["dense"] * 2,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 48,
}
TYPES = {
    "llama4_text": LLAMA4 | {"floor_scale": 4, "attn_temperature_tuning": True},
    "llama4_text without the scaling": LLAMA4 | {"attn_temperature_tuning": False},
    "recurrent_gemma": SIZE
    | {
        "block_types": ["recurrent", "attention"],
        "lru_width": 32,
        "head_dim": 8,
        "num_key_value_heads": 1,
        "attention_window_size": 64,
    },
    "git": {name: value for name, value in GIT.items() if name != "num_key_value_heads"},
    "deepseek_v4": SIZE | DEEPSEEK,
    "minimax_m3_vl_text": SIZE | MINIMAX,
    "llama": SIZE,
}


def drawn(kind: str, fields: dict) -> torch.nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return model


def apart(kind: str, fields: dict) -> float:
    model = drawn(kind, fields)
    row = torch.randint(5, 64, (1, 13), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), row], 1)
    mask = (padded != 0).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        prompt = model(
            padded[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=positions[:, :-1],
            use_cache=True,
        )
        alone = model(row, use_cache=False).logits
        if kind == "git":
            step = model(
                padded[:, -1:],
                attention_mask=mask,
                position_ids=positions[:, -1:],
                cache=prompt.cache,
                use_cache=True,
            )
            return (step.logits[:, -1] - alone[:, -1]).abs().max().item()
    return (prompt.logits[:, 3:] - alone[:, :-1]).abs().max().item()


def main() -> dict[str, float]:
    return {name: apart(name.split()[0], fields) for name, fields in TYPES.items()}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:34s} {number:.2g}")
