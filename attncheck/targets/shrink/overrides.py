"""What the names of the fields cannot tell: values that a config type needs to be small and still
valid.

This is about building a config and nothing else; no probe and no part of the engine reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attncheck.targets.shrink.rules import (
    BLOCK,
    CONTEXT,
    HEAD_DIM,
    HIDDEN,
    INDEX_HEADS,
    INNER,
    VOCAB,
    WINDOW,
)

UNSET: Final = object()
"""The field goes back to the default of its class."""

ALTERNATING = ["sliding_attention", "full_attention"] * 2
TILED = [[28, 56], [56, 28], [56, 56]]
PLAIN_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}

OVERRIDES: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "mamba_d_head": 16, "mamba_n_heads": 8},
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": INNER, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "cohere_compass_text": {
        "layer_types": ALTERNATING,
        "rope_parameters": {
            "sliding_attention": {**PLAIN_ROPE, "mrope_section": [2, 3, 3]},
            "full_attention": None,
        },
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "pegasus_x": {"block_size": 16},
    "esm": {"vocab_size": VOCAB, "pad_token_id": 1, "mask_token_id": VOCAB - 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "hrm_text": {"num_hidden_layers": 1, "num_layers_per_stack": UNSET},
    "hunyuan_v1_dense": {"head_dim": HEAD_DIM},
    "hunyuan_v1_moe": {"head_dim": HEAD_DIM},
    "ministral": {"head_dim": HEAD_DIM},
    "nemotron": {"head_dim": HEAD_DIM, "num_key_value_heads": 2},
    "inkling2_loop_text": {
        "num_hidden_layers": 6,
        "layer_types": ["hybrid_sliding", "hybrid"] * 3,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
        "n_layers_per_attn_res_block": 2,
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy", "first_k_dense_replace": 1},
    "longcat_flash": {
        "head_dim": 8,
        "zero_expert_num": 2,
        "n_routed_experts": 4,
        "moe_topk": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "reformer": {
        "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [16, 48],
        "attn_layers": ["local", "lsh"] * 2,
        "num_hidden_layers": UNSET,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 4,
        "num_hashes": 2,
        "hash_seed": 0,
        "max_position_embeddings": CONTEXT,
    },
    "xlstm": {
        "qk_dim_factor": 1.0,
        "ffn_round_up_to_multiple_of": 16,
        "chunk_size": 16,
        "num_heads": 4,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 7,
        "layers_block_type": ["linear_attention", *["linear_attention", "hybrid"] * 3],
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": 2 * HEAD_DIM,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "num_hidden_layers": 5,
        "layers_block_type": [*["linear_attention", "hybrid"] * 2, "linear_attention"],
        "num_mem_blocks": 1,
        "n_mamba_heads": 8,
        "mamba_ngroups": 1,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": INDEX_HEADS,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD_DIM,
        "indexer_budget": WINDOW,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [1, 3],
        "ple_embed_dim": 32,
        "heads_per_ngram": 2,
        "ngram_size": 3,
        "ngram_vocab_size_base": 64,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 8,
        "eos_token_id": 2,
    },
    "gemma4_text": {
        "layer_types": ALTERNATING,
        "num_hidden_layers": 4,
        "global_head_dim": 2 * HEAD_DIM,
        "enable_moe_block": False,
    },
    "gemma4_unified_text": {
        "layer_types": ALTERNATING,
        "num_hidden_layers": 4,
        "global_head_dim": 2 * HEAD_DIM,
    },
    "dots3_note_text": {
        "layer_types": ["indexed_attention", "sliding_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": HEAD_DIM,
        "swa_qk_nope_head_dim": 8,
        "swa_qk_rope_head_dim": 8,
        "swa_v_head_dim": 16,
    },
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "index_topk_blocks": 2,
        "index_block_size": BLOCK,
        "index_n_heads": 2,
        "num_hidden_layers": 4,
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "partial_rotary_factor": 0.5,
        "o_groups": 2,
        "num_key_value_heads": 1,
    },
    "qwen2_5_vl_vision": {"window_size": 56, "fullatt_block_indexes": [1, 3]},
    "mllama_vision_model": {
        "intermediate_layers_indices": [1, 2],
        "vision_output_dim": 3 * HIDDEN,
    },
    **{name: {"image_grid_pinpoints": TILED} for name in ("llava_next", "llava_next_video")},
    "llava_onevision": {"image_grid_pinpoints": TILED},
    "mllama_text_model": {"cross_attention_layers": [1, 3]},
    "kyutai_speech_to_text": {"num_codebooks": 3},
    "moshi": {"num_codebooks": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": HIDDEN},
}
