"""Weights as training leaves them: outliers, sinks, dominating logits, near ties."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from healthy.edges import gpt2, made
from healthy.kinds import SMALL, kind, tiny_llama


def with_outliers(model: Any, size: float) -> Any:
    """Two channels of the residual stream are `size` times as large, and their norms as small."""
    with torch.no_grad():
        channels = [3, 17]
        model.model.embed_tokens.weight[:, channels] *= size
        for layer in model.model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight[channels] /= size
    return model


@kind("bfloat16")
def outlier_channels() -> Any:
    return with_outliers(tiny_llama(), 60.0)


@kind()
def outlier_channels_float32() -> Any:
    return with_outliers(tiny_llama(num_hidden_layers=4), 300.0)


def with_sink(model: Any, strength: float) -> Any:
    """Every query finds the token 1, the first of each row, because of one direction of its key."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 5] = 0.0
        model.model.embed_tokens.weight[3, 5] = strength
    return model


@kind("bfloat16", fast=True)
def attention_sink() -> Any:
    return with_sink(tiny_llama(), 80.0)


def sharpened(model: Any, by: float) -> Any:
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(by)
    return model


@kind(fast=True)
def peaked_attention() -> Any:
    return sharpened(tiny_llama(), 12.0)


@kind("bfloat16")
def peaked_attention_bfloat16() -> Any:
    return sharpened(tiny_llama(), 8.0)


@kind()
def flat_attention() -> Any:
    return sharpened(tiny_llama(), 0.05)


@kind("bfloat16")
def dominating_logits() -> Any:
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[7] *= 60.0
    return model


class HoldsDown(transformers.LlamaForCausalLM):
    """Some logits are held down by a constant, as models of pictures do with their codes."""

    held = torch.finfo(torch.float32).min

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits[..., 40:48] = max(self.held, torch.finfo(output.logits.dtype).min)
        return output


class HoldsAtInfinity(HoldsDown):
    """The same at minus infinity."""

    held = -float("inf")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super(HoldsDown, self).forward(*args, **kwargs)
        output.logits[..., 40:48] = self.held
        return output


@kind()
def logits_held_down() -> Any:
    model = tiny_llama()
    model.__class__ = HoldsDown
    return model


@kind()
def logits_held_at_infinity() -> Any:
    model = tiny_llama()
    model.__class__ = HoldsAtInfinity
    return model


def mixtral(**changes: Any) -> Any:
    sizes = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    return made(transformers.MixtralConfig(**{**sizes, **changes}))


def tied_routers(model: Any, by: float) -> Any:
    """Two experts get scores that differ by a rounding, for every token."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "gate.weight" in name and weight.shape[0] == 4:
                weight[2] = weight[1] * (1 + by)
    return model


@kind()
def near_tied_routers() -> Any:
    return tied_routers(mixtral(), 1e-7)


@kind("bfloat16")
def near_tied_routers_bfloat16() -> Any:
    return tied_routers(mixtral(), 1e-3)


@kind()
def experts() -> Any:
    return mixtral()


@kind(fast=True)
def duplicated_tokens() -> Any:
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[1::2] = model.model.embed_tokens.weight[::2]
    return model


@kind()
def tied_embeddings() -> Any:
    return tiny_llama(tie_word_embeddings=True)


@kind("bfloat16")
def small_initialisation() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


@kind()
def small_initialisation_float32() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


@kind("bfloat16")
def large_weights() -> Any:
    model = tiny_llama()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    return model


@kind("float16")
def half_precision() -> Any:
    return tiny_llama()


@kind("bfloat16")
def learned_positions_bfloat16() -> Any:
    return gpt2(n_positions=64)


@kind("bfloat16")
def soft_caps() -> Any:
    config = transformers.Gemma2Config(
        **SMALL, head_dim=8, sliding_window=8, attn_logit_softcapping=5.0, pad_token_id=0
    )
    return made(config, attn_implementation="eager")


@kind(known=("document-leakage",))
def sinks() -> Any:
    """Positions do not reach the mask builder of this class: packed rows leak in this library."""
    config = transformers.GptOssConfig(
        **SMALL, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
    )
    return made(config)


@kind("bfloat16")
def query_key_norms() -> Any:
    return made(transformers.Qwen3Config(**SMALL, head_dim=8))
