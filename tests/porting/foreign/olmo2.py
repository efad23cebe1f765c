"""OLMo 2: parameters in one flat dict with kernels as (in, out), einsum, as JAX code has it."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import einsum

FAULTS = ("no-qk-norm", "qk-norm-per-head", "pre-norm", "eps", "gqa-tiled", "wo-transposed")


def convert(model):
    """`{"layer_0/attn/q/kernel": ...}`."""
    out = {}
    for name, value in model.state_dict().items():
        parts = name.removeprefix("model.").replace("layers.", "layer_").split(".")
        if parts[-1] == "weight":
            leaf = "scale" if "norm" in parts[-2] else "kernel"
            if parts[0] == "embed_tokens":
                leaf = "embedding"
            parts[-1] = leaf
            value = value.T.contiguous() if leaf == "kernel" else value.clone()
        out["/".join(parts)] = value
    return out


def rms(x, scale, eps):
    y = x.float() if x.dtype != torch.float64 else x
    y = y / torch.sqrt(torch.mean(y * y, -1, keepdims=True) + eps)
    return (scale.to(y.dtype) * y).to(x.dtype)


def rotate(x_bnhd, base):
    half = x_bnhd.shape[-1] // 2
    inv = 1.0 / base ** (torch.arange(half, dtype=torch.float32, device=x_bnhd.device) / half)
    pos = torch.arange(x_bnhd.shape[1], dtype=torch.float32, device=x_bnhd.device)
    ang = einsum("n,f->nf", pos, inv)[None, :, None, :]
    one, two = x_bnhd[..., :half], x_bnhd[..., half:]
    sin, cos = torch.sin(ang), torch.cos(ang)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x_bnhd.dtype)


def port(model, fault=""):
    """The port as a function of ids."""
    params, cfg = convert(model), model.config
    heads, groups = cfg.num_attention_heads, cfg.num_key_value_heads
    eps = 1e-6 if fault == "eps" else cfg.rms_norm_eps
    base = cfg.rope_parameters["rope_theta"]

    def attention(p, x):
        q = einsum("bnd,dk->bnk", x, params[p + "q_proj/kernel"])
        k = einsum("bnd,dk->bnk", x, params[p + "k_proj/kernel"])
        v = einsum("bnd,dk->bnk", x, params[p + "v_proj/kernel"])
        b, n, _ = q.shape
        if fault == "qk-norm-per-head":
            q = rms(
                q.reshape(b, n, heads, -1), params[p + "q_norm/scale"].reshape(heads, -1), eps
            ).reshape(b, n, -1)
            k = rms(
                k.reshape(b, n, groups, -1), params[p + "k_norm/scale"].reshape(groups, -1), eps
            ).reshape(b, n, -1)
        elif fault != "no-qk-norm":
            q, k = rms(q, params[p + "q_norm/scale"], eps), rms(k, params[p + "k_norm/scale"], eps)
        q = rotate(q.reshape(b, n, heads, -1), base)
        k = rotate(k.reshape(b, n, groups, -1), base)
        v = v.reshape(b, n, groups, -1)
        order = "(gr)" if fault == "gqa-tiled" else ""
        d = q.shape[-1]
        if order:
            q = q.reshape(b, n, heads // groups, groups, d).transpose(2, 3)
        else:
            q = q.reshape(b, n, groups, heads // groups, d)
        s = einsum("bngrd,bmgd->bgrnm", q, k) * d**-0.5
        causal = torch.arange(n)[:, None] >= torch.arange(n)[None, :]
        s = torch.where(causal.to(s.device), s, torch.finfo(s.dtype).min)
        w = torch.softmax(s, -1)
        y = einsum("bgrnm,bmgd->bngrd", w, v)
        if order:
            y = y.transpose(2, 3)
        wo = params[p + "o_proj/kernel"]
        if fault == "wo-transposed" and "layer_1" in p:
            wo = wo.T
        return einsum("bnk,kd->bnd", y.reshape(b, n, heads * d), wo)

    def feed(p, x):
        gate = einsum("bnd,df->bnf", x, params[p + "gate_proj/kernel"])
        up = einsum("bnd,df->bnf", x, params[p + "up_proj/kernel"])
        return einsum(
            "bnf,fd->bnd", gate * torch.sigmoid(gate) * up, params[p + "down_proj/kernel"]
        )

    def apply(ids):
        x = params["embed_tokens/embedding"][ids]
        for i in range(cfg.num_hidden_layers):
            p = f"layer_{i}/"
            n1, n2 = (
                params[p + "post_attention_layernorm/scale"],
                params[p + "post_feedforward_layernorm/scale"],
            )
            if fault == "pre-norm":
                x = x + attention(p + "self_attn/", rms(x, n1, eps))
                x = x + feed(p + "mlp/", rms(x, n2, eps))
            else:
                x = x + rms(attention(p + "self_attn/", x), n1, eps)
                x = x + rms(feed(p + "mlp/", x), n2, eps)
        x = rms(x, params["norm/scale"], eps)
        return einsum("bnd,dv->bnv", x, params["lm_head/kernel"])

    return apply
