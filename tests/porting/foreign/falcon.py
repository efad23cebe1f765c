"""Falcon (new decoder architecture) in my own names, qkv split, two norms, heads before positions, einsum."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math, torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "qkv-contiguous",
    "one-norm",
    "gelu-tanh",
    "sequential",
    "rope-theta",
    "kv-tiled-l1",
    "ln-bias-l2",
)
STYLES = ("", "fused")


class Blk(nn.Module):
    def __init__(s, c, i, f, fused):
        super().__init__()
        D = c.hidden_size
        s.h, s.g = c.num_attention_heads, c.num_kv_heads
        s.d = D // s.h
        s.f, s.i, s.fused = f, i, fused
        if fused:
            s.qkv = nn.Linear(D, (s.h + 2 * s.g) * s.d, bias=False)
        else:
            s.to_q, s.to_k, s.to_v = (
                nn.Linear(D, D, bias=False),
                nn.Linear(D, s.g * s.d, bias=False),
                nn.Linear(D, s.g * s.d, bias=False),
            )
        s.to_out = nn.Linear(D, D, bias=False)
        s.w1 = nn.Linear(D, c.ffn_hidden_size, bias=False)
        s.w2 = nn.Linear(c.ffn_hidden_size, D, bias=False)
        s.na, s.nm = (
            nn.LayerNorm(D, eps=c.layer_norm_epsilon),
            nn.LayerNorm(D, eps=c.layer_norm_epsilon),
        )

    def heads(s, x):
        B, T, _ = x.shape
        n = s.h // s.g
        if not s.fused:
            return (p(x).view(B, T, -1, s.d).transpose(1, 2) for p in (s.to_q, s.to_k, s.to_v))
        y = s.qkv(x).view(B, T, s.g, n + 2, s.d)
        return (
            y[..., :n, :].reshape(B, T, s.h, s.d).transpose(1, 2),
            y[..., n, :].transpose(1, 2),
            y[..., n + 1, :].transpose(1, 2),
        )

    def att(s, x):
        q, k, v = s.heads(x)
        B, H, T, d = q.shape
        base = 500000.0 if s.f == "rope-theta" else 10000.0
        th = torch.arange(T, dtype=torch.float32)[:, None] / base ** (
            torch.arange(0, d, 2, dtype=torch.float32) / d
        )
        c, n = torch.cos(th).to(x.dtype), torch.sin(th).to(x.dtype)

        def r(z):
            a, b = z.chunk(2, -1)
            return torch.cat((a * c - b * n, a * n + b * c), -1)

        q, k = r(q), r(k)
        m = s.h // s.g
        if s.f == "kv-tiled-l1" and s.i == 1:
            k, v = k.repeat(1, m, 1, 1), v.repeat(1, m, 1, 1)
        else:
            k, v = (z[:, :, None].expand(-1, -1, m, -1, -1).flatten(1, 2) for z in (k, v))
        if s.fused:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            w = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d)
            o = torch.einsum(
                "bhij,bhjd->bhid",
                w.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1),
                v,
            )
        return s.to_out(o.transpose(1, 2).reshape(B, T, -1))

    def forward(s, x):
        a = s.att(s.na(x))
        base = x + a if s.f == "sequential" else x
        y = s.w2(
            F.gelu(
                s.w1(s.na(x) if s.f == "one-norm" else s.nm(base)),
                approximate="tanh" if s.f == "gelu-tanh" else "none",
            )
        )
        return base + y if s.f == "sequential" else x + a + y


class Net(nn.Module):
    def __init__(s, m, f, style):
        super().__init__()
        c = m.config
        sd = m.state_dict()
        D = c.hidden_size
        s.tokens = nn.Embedding(c.vocab_size, D)
        s.blocks = nn.ModuleList(Blk(c, i, f, style == "fused") for i in range(c.num_hidden_layers))
        s.out_norm = nn.LayerNorm(D, eps=c.layer_norm_epsilon)
        s.tokens.weight.data.copy_(sd["transformer.word_embeddings.weight"])
        s.out_norm.weight.data.copy_(sd["transformer.ln_f.weight"])
        s.out_norm.bias.data.copy_(sd["transformer.ln_f.bias"])
        for i, b in enumerate(s.blocks):
            g = lambda n: sd[f"transformer.h.{i}.{n}"]
            w = g("self_attention.query_key_value.weight")
            n = b.h // b.g
            if style == "fused":
                b.qkv.weight.data.copy_(w)
            else:
                if f == "qkv-contiguous":
                    q, k, v = w.split((b.h * b.d, b.g * b.d, b.g * b.d))
                else:
                    z = w.view(b.g, n + 2, b.d, D)
                    q, k, v = (
                        z[:, :n].reshape(-1, D),
                        z[:, n].reshape(-1, D),
                        z[:, n + 1].reshape(-1, D),
                    )
                for p, y in ((b.to_q, q), (b.to_k, k), (b.to_v, v)):
                    p.weight.data.copy_(y)
            b.to_out.weight.data.copy_(g("self_attention.dense.weight"))
            b.w1.weight.data.copy_(g("mlp.dense_h_to_4h.weight"))
            b.w2.weight.data.copy_(g("mlp.dense_4h_to_h.weight"))
            b.na.load_state_dict({k: g(f"ln_attn.{k}") for k in ("weight", "bias")})
            b.nm.load_state_dict({k: g(f"ln_mlp.{k}") for k in ("weight", "bias")})
            if f == "ln-bias-l2" and i == 2:
                b.nm.bias = None

    def forward(s, ids):
        x = s.tokens(ids)
        for b in s.blocks:
            x = b(x)
        return F.linear(s.out_norm(x), s.tokens.weight)


def port(model, fault="", style=""):
    return Net(model, fault, style).eval()
