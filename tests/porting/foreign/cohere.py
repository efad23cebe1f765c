"""Cohere: functions on a state dict, no modules at all."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional as F

FAULTS = ("logit-scale", "rope-halves", "rms-norm", "sequential", "rope-direction", "softmax-half")


def layer_norm(x, w, eps, fault):
    h = x.to(torch.float32)
    if fault != "rms-norm":
        h = h - h.mean(-1, keepdim=True)
    return (w.float() * (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps))).to(x.dtype)


def rope(x, theta, fault):
    """x: (B, T, H, D), pairs of neighbours."""
    T, D = x.shape[1], x.shape[3]
    w = theta ** (-torch.arange(0, D, 2, device=x.device) / D)
    a = torch.arange(T, device=x.device)[:, None] * w
    if fault == "rope-direction":
        a = -a
    a = a[None, :, None]
    if fault == "rope-halves":
        u, v = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat([u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()], -1).to(x.dtype)
    u, v = x[..., 0::2], x[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = u * a.cos() - v * a.sin()
    out[..., 1::2] = v * a.cos() + u * a.sin()
    return out


def attention(x, w, n, c, fault):
    B, T, D = x.shape
    H, G = c.num_attention_heads, c.num_key_value_heads
    q = (x @ w[n + "q_proj.weight"].t()).view(B, T, H, -1)
    k = (x @ w[n + "k_proj.weight"].t()).view(B, T, G, -1)
    v = (x @ w[n + "v_proj.weight"].t()).view(B, T, G, -1)
    q, k = (
        rope(q, c.rope_parameters["rope_theta"], fault),
        rope(k, c.rope_parameters["rope_theta"], fault),
    )
    heads = []
    for h in range(H):
        g = h * G // H
        s = q[:, :, h] @ k[:, :, g].transpose(1, 2) / (D // H) ** 0.5
        s = s + torch.triu(torch.ones(T, T, dtype=s.dtype, device=s.device) * float("-inf"), 1)
        a = s.half().softmax(-1).to(s.dtype) if fault == "softmax-half" else s.softmax(-1)
        heads.append(a @ v[:, :, g])
    return torch.cat(heads, -1) @ w[n + "o_proj.weight"].t()


def mlp(x, w, n):
    return (F.silu(x @ w[n + "gate_proj.weight"].t()) * (x @ w[n + "up_proj.weight"].t())) @ w[
        n + "down_proj.weight"
    ].t()


def run(ids, *, w, c, fault):
    """(B, T) to (B, T, V)."""
    x = w["model.embed_tokens.weight"][ids]
    for i in range(c.num_hidden_layers):
        n = f"model.layers.{i}."
        h = layer_norm(x, w[n + "input_layernorm.weight"], c.layer_norm_eps, fault)
        a = attention(h, w, n + "self_attn.", c, fault)
        if fault == "sequential":
            x = x + a
            x = x + mlp(
                layer_norm(x, w[n + "input_layernorm.weight"], c.layer_norm_eps, fault),
                w,
                n + "mlp.",
            )
        else:
            x = x + a + mlp(h, w, n + "mlp.")
    x = layer_norm(x, w["model.norm.weight"], c.layer_norm_eps, fault)
    y = x @ w["model.embed_tokens.weight"].t()
    return y if fault == "logit-scale" else y * c.logit_scale


def port(model, fault=""):
    """The port as a function of ids."""
    return partial(
        run, w={k: v.clone() for k, v in model.state_dict().items()}, c=model.config, fault=fault
    )
