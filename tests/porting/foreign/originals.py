"""The tiny transformers models that the ports are ports of."""

from __future__ import annotations

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

from porting.references import SIZE

COMMON = {**SIZE, "vocab_size": 101, "attn_implementation": "eager"}
GATED = {**COMMON, "intermediate_size": 80, "num_key_value_heads": 2}
CONFIGS = {
    "gpt_neox": {**COMMON, "intermediate_size": 112, "rotary_pct": 0.5, "rope_theta": 10000.0},
    "olmo2": {**GATED, "rms_norm_eps": 1e-5},
    "starcoder2": {**GATED, "sliding_window": 9, "use_bias": True, "norm_epsilon": 1e-5},
    "stablelm": {
        **GATED,
        "qk_layernorm": True,
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "cohere": {**GATED, "logit_scale": 0.25, "use_qk_norm": False},
    "glm": {**GATED, "head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5},
    "deepseek_v3": {
        **GATED,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 20,
        "q_lora_rank": 28,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 10,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
    },
    "gpt2": {
        "vocab_size": 101,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 128,
        "attn_implementation": "eager",
    },
    "qwen3_moe": {
        **GATED,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "bloom": {
        "vocab_size": 101,
        "hidden_size": 48,
        "n_layer": 3,
        "n_head": 6,
        "attn_implementation": "eager",
    },
    "gemma3": {
        **GATED,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        },
    },
    "gpt_oss": {
        **GATED,
        "head_dim": 16,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    },
    "granite": {
        **GATED,
        "attention_multiplier": 0.125,
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 4.0,
        "tie_word_embeddings": True,
    },
    "llama": {
        **GATED,
        "head_dim": 12,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "smollm3": {
        **GATED,
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 0, 1],
        "tie_word_embeddings": False,
    },
    "bert": {**COMMON, "intermediate_size": 80},
    "falcon": {
        **COMMON,
        "num_attention_heads": 6,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "ffn_hidden_size": 100,
    },
    "gptj": {
        "vocab_size": 101,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 128,
        "rotary_dim": 6,
        "attn_implementation": "eager",
    },
    "phi3": {**GATED, "original_max_position_embeddings": 128, "sliding_window": None},
    "roberta": {**COMMON, "intermediate_size": 80, "pad_token_id": 1, "bos_token_id": 0},
    "opt": {**COMMON, "ffn_dim": 80, "word_embed_proj_dim": 48},
    "bart": {
        "vocab_size": 97,
        "d_model": 40,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
    },
    "lfm2": {
        **GATED,
        "num_hidden_layers": 4,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
    "mamba": {
        "vocab_size": 97,
        "hidden_size": 32,
        "state_size": 6,
        "num_hidden_layers": 3,
        "expand": 2,
        "conv_kernel": 4,
        "time_step_rank": 5,
        "use_bias": True,
        "attn_implementation": "eager",
    },
    "t5": {
        "vocab_size": 97,
        "d_model": 40,
        "d_kv": 12,
        "d_ff": 64,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "relative_attention_num_buckets": 16,
        "relative_attention_max_distance": 20,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
        "attn_implementation": "eager",
    },
    "codegen": {
        "vocab_size": 97,
        "n_positions": 128,
        "n_ctx": 128,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 8,
        "rotary_dim": 4,
        "attn_implementation": "eager",
    },
    "persimmon": {
        **COMMON,
        "intermediate_size": 80,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 25000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "gpt_neo": {
        "vocab_size": 97,
        "max_position_embeddings": 128,
        "hidden_size": 48,
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "num_heads": 4,
        "window_size": 7,
        "intermediate_size": 80,
        "attn_implementation": "eager",
    },
    "qwen2_moe": {
        **GATED,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
    },
    "exaone4": {
        **GATED,
        "num_hidden_layers": 4,
        "head_dim": 12,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        **GATED,
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "sliding_window": 8,
        "attn_logit_softcapping": 6.0,
        "final_logit_softcapping": 9.0,
    },
}


KINDS = {
    "bert": AutoModelForMaskedLM,
    "roberta": AutoModelForMaskedLM,
    "bart": AutoModelForSeq2SeqLM,
    "t5": AutoModelForSeq2SeqLM,
}


def original(family: str) -> PreTrainedModel:
    """A model with weights as large as trained ones: norms near one, biases not zero."""
    given = dict(CONFIGS[family])
    implementation = given.pop("attn_implementation")
    config = AutoConfig.for_model(given.pop("model_type", family), **given)
    auto = KINDS.get(family, AutoModelForCausalLM)
    model = auto.from_config(config, attn_implementation=implementation)
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            noise = torch.randn(value.shape, generator=draw)
            if value.ndim > 1:
                looked_up = any(each in name for each in ("embed", "wte", "shared.weight"))
                size = 0.8 if looked_up else 1.2 * value.shape[-1] ** -0.5
                value.copy_(noise * size)
            elif name.endswith("bias"):
                value.copy_(0.3 * noise)
            else:
                value.copy_((0.0 if family in ("gemma2", "gemma3") else 1.0) + 0.25 * noise)
        for name, value in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                value.copy_(0.1 * torch.randn(value.shape, generator=draw))
    return model.eval()
