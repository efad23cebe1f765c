"""What somebody who ports a model reads off it: its settings, and its weights under plain names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PARALLEL = ("phi",)
SANDWICH = ("gemma2", "gemma3_text")
OFFSET = ("gemma2", "gemma3_text")


@dataclass(frozen=True)
class Recipe:
    """Settings and weights of one model. `layers` holds a dictionary of tensors for each layer;
    `flaws` are the mistakes of this port, each with an optional layer."""

    family: str
    heads: int
    groups: int
    width: int
    eps: float
    layers: tuple[dict[str, Tensor], ...]
    outer: dict[str, Tensor]
    norm: str
    norm_offset: float
    activation: str
    scale: float
    windows: tuple[int | None, ...]
    bases: tuple[float, ...]
    rotary_width: int
    linear: tuple[float, ...]
    llama3: dict[str, float] | None
    embed_scale: float
    parallel: bool
    sandwich: bool
    cap: float | None
    logit_cap: float | None
    tied: bool
    experts: int = 0
    chosen: int = 0
    flaws: dict[str, int | None] = field(default_factory=dict)

    def has(self, flaw: str, layer: int | None = None) -> bool:
        """Whether this port makes a mistake, in one layer or at all."""
        if flaw not in self.flaws:
            return False
        return layer is None or self.flaws[flaw] is None or self.flaws[flaw] == layer


def recipe_of(model: Any) -> Recipe:
    """The recipe of a transformers model."""
    config, kind = model.config, model.config.model_type
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    count = config.num_hidden_layers
    gpt2 = kind == "gpt2"
    layers = tuple((_gpt2_layer if gpt2 else _layer)(state, n, kind) for n in range(count))
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    ropes = [_rope(config, n) for n in range(count)]
    types = getattr(config, "layer_types", None) or ["full_attention"] * count
    window = getattr(config, "sliding_window", None)
    windowed = kind == "mistral"
    outer = _outer(state, gpt2)
    return Recipe(
        family=kind,
        heads=heads,
        groups=getattr(config, "num_key_value_heads", None) or heads,
        width=width,
        eps=next(
            getattr(config, n)
            for n in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
            if hasattr(config, n)
        ),
        layers=layers,
        outer=outer,
        norm="layer" if kind in ("phi", "gpt2") else "rms",
        norm_offset=1.0 if kind in OFFSET else 0.0,
        activation="gelu_tanh" if kind in ("phi", "gpt2", *SANDWICH) else "silu",
        scale=getattr(config, "query_pre_attn_scalar", width) ** -0.5,
        windows=tuple(
            window if windowed or each == "sliding_attention" else None for each in types
        ),
        bases=tuple(0.0 if gpt2 else rope["rope_theta"] for rope in ropes),
        rotary_width=0 if gpt2 else int(width * ropes[0].get("partial_rotary_factor", 1.0)),
        linear=tuple(
            rope.get("factor", 1.0) if rope.get("rope_type") == "linear" else 1.0 for rope in ropes
        ),
        llama3=ropes[0] if ropes[0].get("rope_type") == "llama3" else None,
        embed_scale=config.hidden_size**0.5 if kind in SANDWICH else 1.0,
        parallel=kind in PARALLEL,
        sandwich=kind in SANDWICH,
        cap=getattr(config, "attn_logit_softcapping", None),
        logit_cap=getattr(config, "final_logit_softcapping", None),
        tied=torch.equal(outer["table"], outer["head"]),
        experts=getattr(config, "num_local_experts", 0),
        chosen=getattr(config, "num_experts_per_tok", 0),
    )


def _rope(config: Any, layer: int) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    types = getattr(config, "layer_types", None)
    if types and types[layer] in rope:
        return dict(rope[types[layer]])
    return dict(rope)


def _outer(state: dict[str, Tensor], gpt2: bool) -> dict[str, Tensor]:
    if gpt2:
        names = {
            "table": "transformer.wte.weight",
            "positions": "transformer.wpe.weight",
            "norm": "transformer.ln_f.weight",
            "norm_bias": "transformer.ln_f.bias",
            "head": "lm_head.weight",
        }
    else:
        names = {
            "table": "model.embed_tokens.weight",
            "norm": "model.norm.weight",
            "head": "lm_head.weight",
            "head_bias": "lm_head.bias",
        }
        if "model.final_layernorm.weight" in state:
            names |= {
                "norm": "model.final_layernorm.weight",
                "norm_bias": "model.final_layernorm.bias",
            }
    return {ours: state[theirs] for ours, theirs in names.items() if theirs in state}


NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "n1": "input_layernorm",
    "n2": "post_attention_layernorm",
    "qn": "self_attn.q_norm",
    "kn": "self_attn.k_norm",
}
OTHERS = {
    "phi": {"o": "self_attn.dense", "up": "mlp.fc1", "down": "mlp.fc2"},
    "gemma2": {
        "pa": "post_attention_layernorm",
        "n2": "pre_feedforward_layernorm",
        "pm": "post_feedforward_layernorm",
    },
}
OTHERS["gemma3_text"] = OTHERS["gemma2"]


def _layer(state: dict[str, Tensor], number: int, kind: str) -> dict[str, Tensor]:
    home, found = f"model.layers.{number}.", {}
    for ours, theirs in {**NAMES, **OTHERS.get(kind, {})}.items():
        for end, mark in ((".weight", ""), (".bias", "_bias")):
            if home + theirs + end in state:
                found[ours + mark] = state[home + theirs + end]
    if home + "mlp.gate.weight" in state:
        fused = state[home + "mlp.experts.gate_up_proj"]
        inner = fused.shape[1] // 2
        found |= {
            "router": state[home + "mlp.gate.weight"],
            "gates": fused[:, :inner].clone(),
            "ups": fused[:, inner:].clone(),
            "downs": state[home + "mlp.experts.down_proj"],
        }
    return found


def _gpt2_layer(state: dict[str, Tensor], number: int, kind: str) -> dict[str, Tensor]:
    home = f"transformer.h.{number}."
    q, k, v = state[home + "attn.c_attn.weight"].T.chunk(3)
    qb, kb, vb = state[home + "attn.c_attn.bias"].chunk(3)
    return {
        "n1": state[home + "ln_1.weight"],
        "n1_bias": state[home + "ln_1.bias"],
        "n2": state[home + "ln_2.weight"],
        "n2_bias": state[home + "ln_2.bias"],
        "q": q,
        "k": k,
        "v": v,
        "q_bias": qb,
        "k_bias": kb,
        "v_bias": vb,
        "o": state[home + "attn.c_proj.weight"].T,
        "o_bias": state[home + "attn.c_proj.bias"],
        "up": state[home + "mlp.c_fc.weight"].T,
        "up_bias": state[home + "mlp.c_fc.bias"],
        "down": state[home + "mlp.c_proj.weight"].T,
        "down_bias": state[home + "mlp.c_proj.bias"],
    }
