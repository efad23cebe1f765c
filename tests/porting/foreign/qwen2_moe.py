"""Qwen2-MoE like an inference engine: fused qkv, stacked experts, dense dispatch."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "renormalised",
    "softmax-after",
    "top-1",
    "no-shared-gate",
    "no-shared",
    "shared-gate-silu",
    "gate-up-order",
    "experts-rolled",
    "no-qkv-bias",
    "rope-1e6",
    "kv-tiled",
    "router-of-x-l1",
    "k-bias-l2",
    "shared-of-x-l1",
)


class Layer(nn.Module):
    def __init__(self, l, c, f, i, style):
        super().__init__()
        self.f, self.i, self.c, self.style = f, i, c, style
        a, mo = l.self_attn, l.mlp
        P = lambda t: nn.Parameter(t.detach().clone())
        self.wqkv = P(torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]))
        self.bqkv = P(torch.cat([a.q_proj.bias, a.k_proj.bias, a.v_proj.bias]))
        if f == "k-bias-l2" and i == 2:
            self.bqkv.data[48:72] = 0
        self.wo = P(a.o_proj.weight)
        self.g1, self.g2 = P(l.input_layernorm.weight), P(l.post_attention_layernorm.weight)
        self.router = P(mo.gate.weight)
        gu = mo.experts.gate_up_proj
        I = gu.shape[1] // 2
        self.w13 = P(gu if f == "gate-up-order" else torch.cat([gu[:, I:], gu[:, :I]], 1))
        self.w2 = P(mo.experts.down_proj)
        if f == "experts-rolled":
            self.w13.data = self.w13.data.roll(1, 0)
            self.w2.data = self.w2.data.roll(1, 0)
        s = mo.shared_expert
        self.sg, self.su, self.sd, self.sgate = (
            P(s.gate_proj.weight),
            P(s.up_proj.weight),
            P(s.down_proj.weight),
            P(mo.shared_expert_gate.weight),
        )

    def rms(self, x, g):
        return F.rms_norm(x, x.shape[-1:], g, self.c.rms_norm_eps)

    def forward(self, x, cos, sin, mask):
        c, f = self.c, self.f
        B, T, E = x.shape
        H, K = c.num_attention_heads, c.num_key_value_heads
        D = E // H
        h = self.rms(x, self.g1)
        y = F.linear(h, self.wqkv, None if f == "no-qkv-bias" else self.bqkv)
        q, k, v = y.split([H * D, K * D, K * D], -1)
        q, k, v = q.view(B, T, H, D), k.view(B, T, K, D), v.view(B, T, K, D)
        rot = lambda t: t * cos + torch.cat((-t[..., D // 2 :], t[..., : D // 2]), -1) * sin
        q, k = rot(q), rot(k)
        if f == "kv-tiled":
            k, v = k.repeat(1, 1, H // K, 1), v.repeat(1, 1, H // K, 1)
        else:
            k, v = (t[:, :, :, None].expand(B, T, K, H // K, D).reshape(B, T, H, D) for t in (k, v))
        s = torch.einsum("bthd,bshd->bhts", q, k) * D**-0.5
        a = torch.einsum(
            "bhts,bshd->bthd", s.masked_fill(mask, float("-inf")).softmax(-1), v
        ).reshape(B, T, E)
        x = x + a @ self.wo.T
        h = self.rms(x, self.g2).flatten(0, 1)
        ri = x.flatten(0, 1) if f == "router-of-x-l1" and self.i == 1 else h
        lg = ri @ self.router.T
        n = 1 if f == "top-1" else c.num_experts_per_tok
        if f == "softmax-after":
            tv, ti = lg.topk(n)
            tv = tv.softmax(-1)
        else:
            tv, ti = lg.softmax(-1).topk(n)
            if f == "renormalised":
                tv = tv / tv.sum(-1, keepdim=True)
        w = torch.zeros_like(lg).scatter(1, ti, tv)
        I = self.w13.shape[1] // 2
        if self.style == "loop":
            o = torch.zeros_like(h)
            for e in range(lg.shape[1]):
                u, g = (h @ self.w13[e].T).split(I, -1)
                o = o + w[:, e, None] * ((F.silu(g) * u) @ self.w2[e].T)
        else:
            u, g = torch.einsum("te,xoe->txo", h, self.w13).split(I, -1)
            o = torch.einsum("txi,xei,tx->te", F.silu(g) * u, self.w2, w)
        if f != "no-shared":
            hs = x.flatten(0, 1) if f == "shared-of-x-l1" and self.i == 1 else h
            sh = (F.silu(hs @ self.sg.T) * (hs @ self.su.T)) @ self.sd.T
            gt = hs @ self.sgate.T
            o = o + (
                sh
                if f == "no-shared-gate"
                else sh * F.silu(gt)
                if f == "shared-gate-silu"
                else sh * gt.sigmoid()
            )
        return x + o.view(B, T, E)


class Port(nn.Module):
    def __init__(self, m, f, style):
        super().__init__()
        c = self.c = m.config
        self.f = f
        d = m.model
        self.tok = nn.Parameter(d.embed_tokens.weight.detach().clone())
        self.head = nn.Parameter(m.lm_head.weight.detach().clone())
        self.g = nn.Parameter(d.norm.weight.detach().clone())
        self.stack = nn.ModuleList(Layer(l, c, f, i, style) for i, l in enumerate(d.layers))

    def forward(self, ids):
        T = ids.shape[1]
        D = self.c.hidden_size // self.c.num_attention_heads
        x = self.tok[ids]
        inv = 1.0 / ((1e6 if self.f == "rope-1e6" else 1e4) ** (torch.arange(0, D, 2).float() / D))
        a = torch.arange(T).float()[:, None] * inv
        a = torch.cat([a, a], -1)[:, None]
        mask = ~torch.ones(T, T, dtype=torch.bool).tril()
        for l in self.stack:
            x = l(x, a.cos().to(x.dtype), a.sin().to(x.dtype), mask)
        return F.rms_norm(x, x.shape[-1:], self.g, self.c.rms_norm_eps) @ self.head.T


def port(model, fault="", style=""):
    return Port(model, fault, style).eval()
