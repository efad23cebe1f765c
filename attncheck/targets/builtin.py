"""Tiny deterministic models that ship with the tool, made from transformers' own classes, so that
it can be tried anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import wrap_forward
from attncheck.targets.amplify import amplify

SIZE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
POSITIONS = 256
SEED = 0


def _llama() -> Any:
    return transformers.LlamaConfig(
        **SIZE,
        **SPECIAL,
        intermediate_size=96,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=POSITIONS,
    )


def _gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=128,
        n_embd=64,
        n_layer=4,
        n_head=4,
        n_positions=POSITIONS,
        **SPECIAL,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def _gemma2() -> Any:
    return transformers.Gemma2Config(
        **SIZE,
        **SPECIAL,
        intermediate_size=96,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
        max_position_embeddings=POSITIONS,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        query_pre_attn_scalar=16,
    )


def _bloom() -> Any:
    return transformers.BloomConfig(vocab_size=128, hidden_size=64, n_layer=4, n_head=4, **SPECIAL)


def _mixtral() -> Any:
    return transformers.MixtralConfig(
        **SIZE,
        **SPECIAL,
        intermediate_size=96,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
        max_position_embeddings=POSITIONS,
    )


CONFIGS: dict[str, Callable[[], Any]] = {
    "gqa": _llama,
    "mha": _gpt2,
    "window": _gemma2,
    "alibi": _bloom,
    "moe": _mixtral,
    "broken-mask": _llama,
    "broken-positions": _llama,
}


def _length_before(call: dict[str, Any]) -> int:
    return max(cached_length(call.get(name)) for name in CACHE_NAMES)


def _peeking_mask(call: dict[str, Any]) -> dict[str, Any]:
    """The mask of `tril(diagonal=1)`: every query may read the token after it."""
    before, new = _length_before(call), call["input_ids"].shape[1]
    allowed_TS = torch.ones(new, before + new, dtype=torch.bool).tril(before + 1)
    hidden_TS = torch.zeros(allowed_TS.shape).masked_fill(
        ~allowed_TS, torch.finfo(torch.float32).min
    )
    return {**call, "attention_mask": hidden_TS[None, None].to(torch.get_default_dtype())}


def _restarting_positions(call: dict[str, Any]) -> dict[str, Any]:
    """The positions of a forward that forgot to add the length of the cache."""
    if not _length_before(call):
        return call
    return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}


BROKEN = {"broken-mask": _peeking_mask, "broken-positions": _restarting_positions}


def build(name: str, attn: str | None) -> Any:
    """The built-in model of this name, with its weights drawn from a fixed seed."""
    torch.manual_seed(SEED)
    extra = {"attn_implementation": attn} if attn else {}
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), **extra)
    amplify(model, SEED)
    if name in BROKEN:
        wrap_forward(model, BROKEN[name])
    return model
