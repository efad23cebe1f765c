"""Ports within transformers: another config, or a subclass with one method changed.

Axes: B batch, T positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from porting.references import CONFIGS, reference


@dataclass(frozen=True)
class Alteration:
    """One change of a transformers model: of its config, or of the model in memory."""

    name: str
    family: str
    names: tuple[str, ...]
    part: str
    config: dict[str, Any] | None = None
    change: Callable[[Any], None] | None = None


def altered(each: Alteration, attn: str = "sdpa") -> Any:
    """The reference's weights in the altered model."""
    original = reference(each.family)
    config = copy.deepcopy(CONFIGS[each.family]())
    for field, value in (each.config or {}).items():
        setattr(config, field, value)
    model = transformers.AutoModelForCausalLM.from_config(
        config,
        attn_implementation="eager" if each.family == "gemma2" else attn,
        dtype=torch.float32,
    )
    model.load_state_dict(original.state_dict(), strict=False)
    if each.change is not None:
        each.change(model)
    return model.eval()


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def _scaling(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.5


def _no_norm(model: Any) -> None:
    model.model.layers[1].post_attention_layernorm = nn.Identity()


def _swapped(model: Any) -> None:
    mlp = model.model.layers[2].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


def _shifted(model: Any) -> None:
    inner = model.transformer.forward

    def forward(input_ids: Any = None, **call: Any) -> Any:
        call["position_ids"] = torch.arange(input_ids.shape[1])[None] + 2
        return inner(input_ids=input_ids, **call)

    model.transformer.forward = forward


ALTERATIONS = (
    Alteration("base", "llama", ("rotary-base",), "attention", _rope(10000.0)),
    Alteration("odd base", "qwen2", ("rotary-base",), "attention", _rope(123456.0)),
    Alteration(
        "linear",
        "mistral",
        ("rotary-scaling",),
        "attention",
        _rope(10000.0)
        | {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}},
    ),
    Alteration("llama3 off", "llama3", ("rotary-scaling",), "attention", _rope(500000.0)),
    Alteration(
        "partial", "phi", ("rotary-width",), "attention", _rope(10000.0, partial_rotary_factor=1.0)
    ),
    Alteration("eps", "llama", ("norm-eps",), "norm", {"rms_norm_eps": 1e-5}),
    Alteration("odd eps", "gpt2", ("norm-eps",), "norm", {"layer_norm_epsilon": 3e-4}),
    Alteration("activation", "qwen3", ("activation",), "mlp", {"hidden_act": "gelu"}),
    Alteration("gelu", "gpt2", ("activation",), "mlp", {"activation_function": "gelu"}),
    Alteration("window", "mistral", ("window-off-by-one",), "attention", {"sliding_window": 9}),
    Alteration("no window", "mistral", ("window-ignored",), "attention", {"sliding_window": None}),
    Alteration("wide window", "mistral", ("window-length",), "attention", {"sliding_window": 14}),
    Alteration("experts", "mixtral", ("router-experts",), "mlp", {"num_experts_per_tok": 3}),
    Alteration("scalar", "gemma2", ("softmax-scale",), "attention", {"query_pre_attn_scalar": 12}),
    Alteration(
        "cap",
        "gemma2",
        ("softcap-value", "softcap-missing"),
        "attention",
        {"attn_logit_softcapping": 7.5},
    ),
    Alteration("logit cap", "gemma2", ("logit-cap",), "head", {"final_logit_softcapping": 9.0}),
    Alteration("scaling", "llama", ("softmax-scale",), "attention", None, _scaling),
    Alteration("no norm", "qwen2", ("norm-missing",), "norm", None, _no_norm),
    Alteration("swapped", "qwen3", ("gate-up-exchanged",), "mlp", None, _swapped),
    Alteration("shifted", "gpt2", ("position-offset",), "embedding", None, _shifted),
)
