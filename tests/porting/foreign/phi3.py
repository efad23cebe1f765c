"""Phi-3 split: separate q, k, v, gate and up; rotation by a cached complex table; ALiBi-free; time axis second."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "kv-swapped-in-split",
    "gate-up-order",
    "norm-fp-eps",
    "no-second-residual-l1",
    "down-from-layer-0",
    "rope-one-position-late",
    "silu-on-both",
)
STYLES = ("", "one-matmul")


class L(nn.Module):
    def __init__(s, c, g, f, i):
        super().__init__()
        H, G = c.num_attention_heads, c.num_key_value_heads
        d = c.hidden_size // H
        s.H, s.G, s.d, s.f, s.i = H, G, d, f, i
        w = g("self_attn.qkv_proj.weight")
        q, k, v = w.split((H * d, G * d, G * d))
        if f == "kv-swapped-in-split":
            k, v = v, k
        s.q, s.k, s.v = (nn.Parameter(x.clone()) for x in (q, k, v))
        s.o = nn.Parameter(g("self_attn.o_proj.weight").clone())
        a, b = g("mlp.gate_up_proj.weight").chunk(2)
        if f == "gate-up-order":
            a, b = b, a
        s.a, s.b, s.dn = (
            nn.Parameter(a.clone()),
            nn.Parameter(b.clone()),
            nn.Parameter(g("mlp.down_proj.weight").clone()),
        )
        s.n1, s.n2 = (
            nn.Parameter(g("input_layernorm.weight").clone()),
            nn.Parameter(g("post_attention_layernorm.weight").clone()),
        )


class M(nn.Module):
    def __init__(s, m, f, style):
        super().__init__()
        c = s.c = m.config
        sd = m.state_dict()
        s.f, s.style = f, style
        s.e, s.h, s.n = (
            nn.Parameter(sd[k].clone())
            for k in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
        )

        def get(i):
            def g(n):
                if f == "down-from-layer-0" and i == 2 and "down" in n:
                    return sd["model.layers.0." + n]
                return sd[f"model.layers.{i}.{n}"]

            return g

        s.ls = nn.ModuleList(L(c, get(i), f, i) for i in range(c.num_hidden_layers))

    def rms(s, x, w):
        return w * (
            x
            * torch.rsqrt(
                x.square().mean(-1, True) + (1e-6 if s.f == "norm-fp-eps" else s.c.rms_norm_eps)
            )
        )

    def rot(s, x, off=0):
        d = x.shape[-1]
        inv = 10000.0 ** -(torch.arange(0, d, 2).float() / d)
        t = (torch.arange(x.shape[1]).float() + off)[:, None] * inv
        z = (
            torch.complex(x[..., : d // 2].double(), x[..., d // 2 :].double())
            * torch.polar(torch.ones_like(t), t).to(torch.complex128)[None, :, None]
        )
        return torch.cat((z.real, z.imag), -1).to(x.dtype)

    def forward(s, ids):
        x = s.e[ids]
        B, T, C = x.shape
        for l in s.ls:
            y = s.rms(x, l.n1)
            if s.style == "one-matmul":
                q, k, v = (y @ torch.cat((l.q, l.k, l.v)).T).split(
                    (l.H * l.d, l.G * l.d, l.G * l.d), -1
                )
            else:
                q, k, v = y @ l.q.T, y @ l.k.T, y @ l.v.T
            q, k, v = q.view(B, T, l.H, l.d), k.view(B, T, l.G, l.d), v.view(B, T, l.G, l.d)
            q, k = s.rot(q), s.rot(k, 1 if s.f == "rope-one-position-late" else 0)
            r = l.H // l.G
            q = q.view(B, T, l.G, r, l.d)
            a = torch.einsum("btgrd,bsgd->bgrts", q, k) / l.d**0.5
            a = a.masked_fill(
                torch.ones(T, T).triu(1).bool(), -1e30 if a.dtype != torch.float16 else -6e4
            ).softmax(-1)
            o = torch.einsum("bgrts,bsgd->btgrd", a, v).reshape(B, T, C) @ l.o.T
            base = x
            x = x + o
            y = s.rms(x, l.n2)
            u = y @ l.b.T
            if s.f == "silu-on-both":
                u = F.silu(u)
            z = (F.silu(y @ l.a.T) * u) @ l.dn.T
            x = z if s.f == "no-second-residual-l1" and l.i == 1 else x + z
        return s.rms(x, s.n) @ s.h.T


def port(m, fault="", style=""):
    return M(m, fault, style).eval()
