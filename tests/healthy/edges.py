"""Architectures at the edges of their sizes."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from attncheck.targets.amplify import amplify
from healthy.kinds import SMALL, kind, tiny_llama

GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 2}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def made(config: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, **options)
    amplify(model, 0)
    return model


def gpt2(**changes: Any) -> Any:
    return made(transformers.GPT2Config(**{**GPT2, **NO_DROPOUT, "bos_token_id": 1, **changes}))


def mistral(**changes: Any) -> Any:
    return made(transformers.MistralConfig(**{**SMALL, **changes}))


@kind(fast=True)
def context_of_8() -> Any:
    return gpt2(n_positions=8)


@kind("bfloat16")
def context_of_10() -> Any:
    return gpt2(n_positions=10)


@kind(fast=True)
def context_of_12() -> Any:
    return gpt2(n_positions=12)


@kind()
def context_of_16() -> Any:
    return gpt2(n_positions=16)


@kind()
def context_of_20() -> Any:
    return gpt2(n_positions=20)


@kind()
def rotary_context_of_12() -> Any:
    return tiny_llama(max_position_embeddings=12)


@kind(length=24, fast=True)
def window_of_half_the_row() -> Any:
    return mistral(sliding_window=12)


@kind("bfloat16", length=24)
def window_of_half_in_bfloat16() -> Any:
    return mistral(sliding_window=12)


@kind(length=24)
def window_of_the_row() -> Any:
    return mistral(sliding_window=24)


@kind()
def window_of_2() -> Any:
    return mistral(sliding_window=2)


def llama4(**changes: Any) -> Any:
    config = transformers.Llama4TextConfig(
        **{
            **SMALL,
            "intermediate_size_mlp": 48,
            "head_dim": 8,
            "num_local_experts": 2,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 0],
            "pad_token_id": 0,
            **changes,
        }
    )
    return made(config)


@kind(length=24, fast=True)
def chunk_of_half_the_row() -> Any:
    return llama4(attention_chunk_size=12)


@kind("bfloat16", length=24)
def chunk_of_a_third_of_the_row() -> Any:
    return llama4(attention_chunk_size=8)


def without_head(model: Any, layer: int, heads: slice, *names: str) -> Any:
    """The model with the rows of some heads zero in some projections of a layer."""
    attention = model.model.layers[layer].self_attn
    width = attention.head_dim
    with torch.no_grad():
        for name in names:
            getattr(attention, name).weight.view(-1, width, SMALL["hidden_size"])[heads] = 0.0
    return model


@kind(fast=True)
def head_of_zero_values() -> Any:
    return without_head(tiny_llama(), 0, slice(0, 1), "v_proj")


@kind()
def head_of_zero_queries() -> Any:
    return without_head(tiny_llama(), 1, slice(1, 2), "q_proj")


@kind("bfloat16", fast=True)
def layer_of_zero_keys_and_values() -> Any:
    return without_head(tiny_llama(), 0, slice(None), "k_proj", "v_proj")


@kind()
def layer_of_zero_values() -> Any:
    return without_head(tiny_llama(), 1, slice(None), "v_proj")


@kind()
def layer_without_output() -> Any:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
    return model


@kind()
def identity_layer() -> Any:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
        model.model.layers[1].mlp.down_proj.weight.zero_()
    return model


def repeated(model: Any, times: int) -> Any:
    with torch.no_grad():
        for layer in model.model.layers:
            for name in ("k_proj", "v_proj"):
                weight = getattr(layer.self_attn, name).weight
                heads = weight.view(-1, layer.self_attn.head_dim, weight.shape[-1])
                heads.copy_(heads[::times].repeat_interleave(times, 0))
    return model


@kind(fast=True)
def mha_made_from_gqa() -> Any:
    return repeated(tiny_llama(num_key_value_heads=4), 2)


@kind(fast=True)
def gqa_made_from_mqa() -> Any:
    return repeated(tiny_llama(num_key_value_heads=2), 2)


@kind()
def all_heads_equal() -> Any:
    model = repeated(tiny_llama(num_key_value_heads=4), 4)
    with torch.no_grad():
        for layer in model.model.layers:
            heads = layer.self_attn.q_proj.weight.view(4, -1, SMALL["hidden_size"])
            heads.copy_(heads[:1].repeat(4, 1, 1))
    return model


@kind()
def one_layer() -> Any:
    return tiny_llama(num_hidden_layers=1)


@kind()
def one_head() -> Any:
    return tiny_llama(num_attention_heads=1, num_key_value_heads=1)


@kind(fast=True)
def one_key_head() -> Any:
    return tiny_llama(num_key_value_heads=1)


@kind("bfloat16", fast=True)
def one_of_everything() -> Any:
    return tiny_llama(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)


@kind(fast=True)
def odd_widths() -> Any:
    return tiny_llama(
        vocab_size=61,
        hidden_size=33,
        intermediate_size=47,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=10,
    )


@kind()
def head_width_of_2() -> Any:
    return tiny_llama(head_dim=2)


@kind("bfloat16")
def odd_groups() -> Any:
    return tiny_llama(hidden_size=36, num_attention_heads=9, num_key_value_heads=3, head_dim=6)


@kind()
def odd_head_width() -> Any:
    return gpt2(n_embd=35, n_head=5)


@kind()
def vocabulary_of_8() -> Any:
    return tiny_llama(vocab_size=8)


@kind("bfloat16", length=4)
def as_many_tokens_as_heads() -> Any:
    return tiny_llama()


@kind(length=5)
def rows_of_5_tokens() -> Any:
    return tiny_llama()


def rope(**parameters: Any) -> Any:
    return tiny_llama(rope_parameters={"rope_theta": 10000.0, **parameters})


@kind()
def rope_linear() -> Any:
    return rope(rope_type="linear", factor=4.0)


@kind("bfloat16")
def rope_yarn() -> Any:
    return rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=512)


@kind()
def rope_llama3() -> Any:
    return rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )


@kind()
def rope_base_of_a_million() -> Any:
    return tiny_llama(rope_parameters={"rope_theta": 1e6, "rope_type": "default"})
