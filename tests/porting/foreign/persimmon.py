"""Persimmon with split projections, (B, T, H, D) layout and functional norms."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "qkv-contiguous",
    "no-qk-norm",
    "qk-norm-after-rope",
    "qk-rms",
    "relu",
    "gelu",
    "rope-full",
    "rope-10000",
    "rope-interleaved",
    "dense-bias",
    "k-norm-bias-l1",
    "final-norm-skipped",
    "residual-normed-l2",
    "future-by-one",
)


class Port(nn.Module):
    def __init__(self, m, f, style):
        super().__init__()
        c = m.config
        self.f, self.style = f, style
        self.H = c.num_attention_heads
        self.D = c.hidden_size // self.H
        self.eps = c.layer_norm_eps
        self.n = c.num_hidden_layers
        P = nn.ParameterDict()
        sd = m.state_dict()
        put = lambda k, t: P.__setitem__(k, nn.Parameter(t.detach().clone()))
        put("tok", sd["model.embed_tokens.weight"])
        put("out", sd["lm_head.weight"])
        put("fn_w", sd["model.final_layernorm.weight"])
        put("fn_b", sd["model.final_layernorm.bias"])
        for i in range(self.n):
            s = f"model.layers.{i}."
            w, b = (
                sd[s + "self_attn.query_key_value.weight"],
                sd[s + "self_attn.query_key_value.bias"],
            )
            if f == "qkv-contiguous":
                ws, bs = w.chunk(3), b.chunk(3)
            else:
                ws, bs = (
                    [w.view(self.H, 3, self.D, -1)[:, j].flatten(0, 1) for j in range(3)],
                    [b.view(self.H, 3, self.D)[:, j].flatten() for j in range(3)],
                )
            for n, x, y in zip("qkv", ws, bs):
                put(f"{i}_{n}w", x)
                put(f"{i}_{n}b", y)
            for a, n in (
                ("self_attn.dense", "o"),
                ("self_attn.q_layernorm", "qn"),
                ("self_attn.k_layernorm", "kn"),
                ("input_layernorm", "n1"),
                ("post_attention_layernorm", "n2"),
                ("mlp.dense_h_to_4h", "up"),
                ("mlp.dense_4h_to_h", "dn"),
            ):
                put(f"{i}_{n}w", sd[s + a + ".weight"])
                put(f"{i}_{n}b", sd[s + a + ".bias"])
        if f == "k-norm-bias-l1":
            P["1_knb"].data.zero_()
        self.P = P

    def ln(self, x, n):
        w, b = self.P[n + "w"], self.P[n + "b"]
        if self.f == "qk-rms" and n[-2:] in ("qn", "kn"):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * w + b
        return F.layer_norm(x, x.shape[-1:], w, b, self.eps)

    def rope(self, x):  # B T H D
        R = self.D if self.f == "rope-full" else self.D // 2
        base = 10000.0 if self.f == "rope-10000" else 25000.0
        a = torch.outer(
            torch.arange(x.shape[1], dtype=torch.float32),
            base ** (-torch.arange(0, R, 2, dtype=torch.float32) / R),
        )
        c, s = a.cos()[None, :, None].to(x.dtype), a.sin()[None, :, None].to(x.dtype)
        if self.f == "rope-interleaved":
            e, o = x[..., 0:R:2], x[..., 1:R:2]
            y = torch.stack((e * c - o * s, e * s + o * c), -1).flatten(-2)
        else:
            e, o = x[..., : R // 2], x[..., R // 2 : R]
            y = torch.cat((e * c - o * s, e * s + o * c), -1)
        return torch.cat((y, x[..., R:]), -1)

    def forward(self, tokens):
        P, f = self.P, self.f
        x = P["tok"][tokens]
        T = tokens.shape[1]
        m = torch.full((T, T), float("-inf"), dtype=x.dtype).triu(2 if f == "future-by-one" else 1)
        for i in range(self.n):
            h = self.ln(x, f"{i}_n1")
            q, k, v = (
                F.linear(h, P[f"{i}_{n}w"], P[f"{i}_{n}b"]).unflatten(-1, (self.H, self.D))
                for n in "qkv"
            )
            if f == "qk-norm-after-rope":
                q, k = self.ln(self.rope(q), f"{i}_qn"), self.ln(self.rope(k), f"{i}_kn")
            elif f == "no-qk-norm":
                q, k = self.rope(q), self.rope(k)
            else:
                q, k = self.rope(self.ln(q, f"{i}_qn")), self.rope(self.ln(k, f"{i}_kn"))
            s = torch.einsum("bqhd,bkhd->bhqk", q / self.D**0.5, k) + m
            if self.style == "manual-softmax":
                s = (s - s.amax(-1, keepdim=True)).exp()
                s = s / s.sum(-1, keepdim=True)
            else:
                s = s.softmax(-1)
            a = torch.einsum("bhqk,bkhd->bqhd", s, v).flatten(2)
            a = F.linear(a, P[f"{i}_ow"], None if f == "dense-bias" else P[f"{i}_ob"])
            x = (h if f == "residual-normed-l2" and i == 2 else x) + a
            u = F.linear(self.ln(x, f"{i}_n2"), P[f"{i}_upw"], P[f"{i}_upb"])
            u = F.relu(u) if f == "relu" else F.gelu(u) if f == "gelu" else F.relu(u).square()
            x = x + F.linear(u, P[f"{i}_dnw"], P[f"{i}_dnb"])
        if f != "final-norm-skipped":
            x = self.ln(x, "fn_")
        return x @ P["out"].T


def port(model, fault="", style=""):
    return Port(model, fault, style).eval()
