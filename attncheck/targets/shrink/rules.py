"""What each config field becomes in a small model, by the field's name alone: the first rule
that matches wins.

Query heads differ from the square of the KV heads, widths from each other, and windows, chunks and
top-k sizes lie below the length of the inputs, so that a mixed-up axis or an off-by-one error
cannot hide in a square layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

VOCAB = 128
HIDDEN = 64
INNER = 96
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
ROTARY_DIM = 8
LAYERS = 4
WINDOW = 8
CHUNK = 8
BLOCK = 4
CONTEXT = 512
SWITCH = 16
"""The trained length of a scaled rotary table: inputs are longer, so that they cross the switch."""
RANK = 16
STATE = 16
EXPERTS = 4
INDEX_HEADS = 8
"""Sparse attention picks keys by the sum over index heads: with few heads, exact ties look like
faults.
"""


@final
@dataclass(frozen=True)
class Wanted:
    """How small: layers to keep, and the length of windows."""

    layers: int = LAYERS
    window: int = WINDOW


Size = Callable[[Any, Wanted], Any]


def keep(old: Any, wanted: Wanted) -> Any:
    """The field is no size."""
    return old


def exactly(value: int) -> Size:
    """This value; a field that is off (None, 0 or negative) stays off."""
    return lambda old, wanted: value if _on(old) else old


def at_most(value: int) -> Size:
    """This value, or less where the config has less."""
    return lambda old, wanted: min(old, value) if _on(old) else old


def window(old: Any, wanted: Wanted) -> Any:
    """A window in use becomes short."""
    return min(old, wanted.window) if _on(old) else old


def depth(old: Any, wanted: Wanted) -> Any:
    """The number of layers."""
    return wanted.layers if _on(old) else old


def last_layer(old: Any, wanted: Wanted) -> Any:
    """The number of the last layer."""
    return wanted.layers - 1 if _on(old) else old


def _on(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


NO_SIZES = r"""chunk_size_feed_forward|pretraining_tp|num_labels|num_channels|type_vocab_size|
n_langs|layernum|num_logits_to_keep|num_nextn_predict_layers|spatial_merge_size|
temporal_patch_size|in_channels|out_channels|chunk_size_lm_head|num_mem_blocks|
patching_batch_size|attention_k|routed_scaling_factor|hidden_act|expansion_ratio|mamba_expand|
expand|.*(seed|dropout|_eps)"""
WINDOWS = r"""sliding_window|sliding_window_size|attention_chunk_size|attention_window_size|
attention_window|
window_size|local_attention|local_attention_window_len|index_topk|index_topk_blocks|
keep_window_size|indexer_budget|mamba_chunk_size|chunk_size"""
CONTEXTS = r"""max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length|
max_target_positions|context_length|max_length|position_bias_max_distance"""
RANKS = r"""kv_lora_rank|q_lora_rank|o_lora_rank|gated_norm_rank|loop_gate_rank|laurel_rank|
adapter_rank|hc_lowrank|linear_rank"""
QUERY_HEADS = r".*(num_attention_heads|attention_heads|n_head|n_heads|num_heads)"
SHARED_HEADS = r".*(num_key_value_heads|num_kv_heads|kv_n_heads)"
HEAD_WIDTHS = r".*(head_dim|dim_head|d_kv|d_head|attention_head_size|kv_channels)"
INNER_WIDTHS = r"""intermediate_size_mlp|.*(intermediate_size|ffn_dim|d_ff|dff|dim_ff|n_inner|
d_inner|feed_forward_size|ffn_hidden_size|mlp_dim|prompt_mid_dim)"""
WIDTHS = r""".*(hidden_size|d_model|n_embd|embed_dim|embedding_dim|emb_dim|word_embed_proj_dim|
embedding_size|hidden_size_global|vision_output_dim|projector_input_dim|projector_output_dim|
adapter_in_dim|adapter_out_dim|adapter_input_size|output_channels|classifier_proj_size|
ext_pw_out_channel|depthwise_separable_out_channel|nemo_conv_channels)"""
DEPTHS = r"""num_hidden_layers|conf_num_hidden_layers|n_layer|n_layers|num_layers|encoder_layers|
decoder_layers|num_encoder_layers|num_decoder_layers|num_blocks|depth|num_layers_per_stack|
num_global_layers"""
PERIODS = r"""n_layers_per_attn_res_block|layer_group_size|_?sliding_window_pattern|
global_attn_every_n_layers|prefix_dense_sliding_window_pattern|no_rope_layer_interval|
attn_layer_period|expert_layer_period"""

_TABLE: tuple[tuple[str, Size], ...] = (
    (NO_SIZES, keep),
    (
        r".*(vocab_size|vocab_size_per_layer_input|unpadded_vocab_size|"
        r"encoder_hash_byte_group_vocab|codebook_size)",
        exactly(VOCAB),
    ),
    (r"ngram_vocab_size_base", exactly(64)),
    (WINDOWS, window),
    (r"index_block_size", exactly(BLOCK)),
    (CONTEXTS, at_most(CONTEXT)),
    (r"original_max_position_embeddings", at_most(SWITCH)),
    (r"max_source_positions", exactly(32)),
    (r"rel_extent", exactly(64)),
    (
        r"num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k|moe_k|num_selected_experts",
        at_most(2),
    ),
    (
        r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|zero_expert_num",
        at_most(EXPERTS),
    ),
    (r"n_group|num_expert_group", at_most(2)),
    (r"topk_group|n_shared_experts|num_shared_experts|moe_num_shared_experts", at_most(1)),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", at_most(1)),
    (r"moe_layer_end_index", last_layer),
    (RANKS, at_most(RANK)),
    (r"qk_nope_head_dim|v_head_dim", exactly(HEAD_DIM)),
    (r"qk_rope_head_dim|rotary_dim", exactly(ROTARY_DIM)),
    (r"qk_head_dim", exactly(HEAD_DIM + ROTARY_DIM)),
    (r"linear_num_key_heads", exactly(2)),
    (r"linear_num_value_heads|linear_num_heads", exactly(4)),
    (r"linear_(key_|value_)?head_dim", exactly(HEAD_DIM)),
    (r"mamba_d_state|ssm_state_size|state_size", at_most(STATE)),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", at_most(8)),
    (r"mamba_d_head|mamba_head_dim|mamba_headdim", exactly(HEAD_DIM)),
    (r"mamba_n_groups|mamba_ngroups|n_groups", at_most(2)),
    (r"mamba_d_ssm", exactly(128)),
    (r"time_step_rank|mamba_dt_rank", exactly(8)),
    (r"lru_width", exactly(HIDDEN)),
    (SHARED_HEADS, at_most(KV_HEADS)),
    (r"index_n_heads|indexer_n_heads", exactly(INDEX_HEADS)),
    (r"global_head_dim", exactly(2 * HEAD_DIM)),
    (QUERY_HEADS, exactly(HEADS)),
    (HEAD_WIDTHS, exactly(HEAD_DIM)),
    (INNER_WIDTHS, exactly(INNER)),
    (WIDTHS, exactly(HIDDEN)),
    (r"hidden_size_per_layer_input", exactly(8)),
    (
        r"router_hidden_size|dim_model_base|query_pre_attn_scalar|d_rel|block_multiple_of",
        exactly(16),
    ),
    (
        r"num_filters|base_channels|latent_channels|vector_quantization_hidden_dimension|"
        r"upsample_groups|codebook_dim",
        at_most(16),
    ),
    (DEPTHS, depth),
    (r"num_kv_shared_layers|max_window_layers|n_recurrent_layers", exactly(2)),
    (r"n_input_layers|n_output_layers|loop_layer_index_start", exactly(1)),
    (r"loop_layer_index_end", exactly(3)),
    (PERIODS, exactly(2)),
    (r"attn_layer_offset|expert_layer_offset", exactly(1)),
    (r"image_size|crop_size", exactly(28)),
    (r"patch_size", at_most(14)),
    (r"mm_tokens_per_image", exactly(4)),
    (r"projection_dim", exactly(HIDDEN)),
    (r"num_mel_bins", exactly(16)),
    # Scaling by the logarithm of the position starts at thousands of tokens: at 4 it shows within
    # the input.
    (r"log_scaling_n_floor", exactly(4)),
    (r"prompt_length|prompt_types|segment_types", at_most(8)),
)
RULES = tuple((re.compile(pattern.replace("\n", "")), size) for pattern, size in _TABLE)


def size_of(field: str) -> Size:
    """The rule of a field; `keep` where no rule knows its name."""
    return next((size for pattern, size in RULES if pattern.fullmatch(field)), keep)
