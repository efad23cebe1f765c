"""T5 in one file: one attention for all, the table of relative biases passed down."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math, torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "scaled",
    "bidir-in-decoder",
    "uni-in-encoder",
    "max-distance-128",
    "bias-first-layer-only",
    "cross-gets-bias",
    "head-unscaled",
    "relu-ff",
    "gelu-exact",
    "wi-swapped-l1",
    "no-enc-final-norm",
    "layer-norm",
    "cross-kv-from-decoder-l1",
    "cross-o-l2",
    "decoder-not-causal",
    "ids-shifted",
)


class Attn(nn.Module):
    def __init__(self, a, fused):
        super().__init__()
        self.h, self.d = a.n_heads, a.key_value_proj_dim
        self.fused = fused
        if fused:
            self.qkv = nn.Parameter(
                torch.cat([a.q.weight, a.k.weight, a.v.weight]).detach().clone()
            )
        else:
            self.q = nn.Parameter(a.q.weight.detach().clone())
            self.kv = nn.Parameter(torch.cat([a.k.weight, a.v.weight]).detach().clone())
        self.o = nn.Parameter(a.o.weight.detach().clone())

    def forward(self, x, mem, bias, scale=1.0):
        if self.fused:
            n = self.qkv.shape[0] // 3
            q, k, v = x @ self.qkv[:n].T, mem @ self.qkv[n : 2 * n].T, mem @ self.qkv[2 * n :].T
        else:
            q = x @ self.q.T
            k, v = (mem @ self.kv.T).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.h, self.d)).transpose(1, 2) for t in (q, k, v))
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
        if bias is not None:
            s = s + bias
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.o.T


class RMS(nn.Module):
    def __init__(self, m, kind="rms"):
        super().__init__()
        self.g = nn.Parameter(m.weight.detach().clone())
        self.eps = m.variance_epsilon
        self.kind = kind

    def forward(self, x):
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        return self.g * (x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt())


class FF(nn.Module):
    def __init__(self, m, f, i):
        super().__init__()
        self.f = f
        a, b = m.wi_0.weight, m.wi_1.weight
        if f == "wi-swapped-l1" and i == 1:
            a, b = b, a
        self.w0, self.w1, self.w2 = (nn.Parameter(t.detach().clone()) for t in (a, b, m.wo.weight))

    def forward(self, x):
        g = x @ self.w0.T
        g = (
            F.relu(g)
            if self.f == "relu-ff"
            else F.gelu(g)
            if self.f == "gelu-exact"
            else F.gelu(g, approximate="tanh")
        )
        return (g * (x @ self.w1.T)) @ self.w2.T


def bucket(rel, both, n, far):
    out = 0
    if both:
        n //= 2
        out = (rel > 0).long() * n
        rel = rel.abs()
    else:
        rel = (-rel).clamp(min=0)
    exact = n // 2
    big = (
        exact
        + (torch.log(rel.float().clamp(min=1) / exact) / math.log(far / exact) * (n - exact)).long()
    )
    return out + torch.where(rel < exact, rel, big.clamp(max=n - 1))


class Port(nn.Module):
    def __init__(self, m, f, fused):
        super().__init__()
        self.f = f
        self.c = m.config
        self.emb = nn.Parameter(m.shared.weight.detach().clone())
        kind = "layer" if f == "layer-norm" else "rms"
        self.enc = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    a=Attn(b.layer[0].SelfAttention, fused),
                    n1=RMS(b.layer[0].layer_norm, kind),
                    n2=RMS(b.layer[1].layer_norm, kind),
                    ff=FF(b.layer[1].DenseReluDense, f, i),
                )
            )
            for i, b in enumerate(m.encoder.block)
        )
        self.dec = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    a=Attn(b.layer[0].SelfAttention, fused),
                    c=Attn(b.layer[1].EncDecAttention, fused),
                    n1=RMS(b.layer[0].layer_norm, kind),
                    n2=RMS(b.layer[1].layer_norm, kind),
                    n3=RMS(b.layer[2].layer_norm, kind),
                    ff=FF(b.layer[2].DenseReluDense, f, i),
                )
            )
            for i, b in enumerate(m.decoder.block)
        )
        if f == "cross-o-l2":
            self.dec[2].c.o.data = (
                m.decoder.block[1].layer[1].EncDecAttention.o.weight.detach().clone()
            )
        self.ne, self.nd = (
            RMS(m.encoder.final_layer_norm, kind),
            RMS(m.decoder.final_layer_norm, kind),
        )
        self.eb = nn.Parameter(
            m.encoder.block[0]
            .layer[0]
            .SelfAttention.relative_attention_bias.weight.detach()
            .clone()
        )
        self.db = nn.Parameter(
            m.decoder.block[0]
            .layer[0]
            .SelfAttention.relative_attention_bias.weight.detach()
            .clone()
        )

    def bias(self, table, q, k, both):
        far = 128 if self.f == "max-distance-128" else self.c.relative_attention_max_distance
        rel = torch.arange(k)[None] - torch.arange(q)[:, None]
        return table[bucket(rel, both, self.c.relative_attention_num_buckets, far)].permute(
            2, 0, 1
        )[None]

    def forward(self, input_ids, decoder_input_ids):
        f = self.f
        sc = self.c.d_kv**-0.5 if f == "scaled" else 1.0
        x = F.embedding(input_ids, self.emb)
        S = x.shape[1]
        b = self.bias(self.eb, S, S, f != "uni-in-encoder")
        for i, l in enumerate(self.enc):
            h = l.n1(x)
            x = x + l.a(h, h, None if f == "bias-first-layer-only" and i else b, sc)
            x = x + l.ff(l.n2(x))
        mem = x if f == "no-enc-final-norm" else self.ne(x)
        if f == "ids-shifted":
            decoder_input_ids = torch.cat(
                [torch.zeros_like(decoder_input_ids[:, :1]), decoder_input_ids[:, :-1]], 1
            )
        y = F.embedding(decoder_input_ids, self.emb)
        T = y.shape[1]
        b = self.bias(self.db, T, T, f == "bidir-in-decoder")
        if f != "decoder-not-causal":
            b = b.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
        for i, l in enumerate(self.dec):
            h = l.n1(y)
            bb = b if not (f == "bias-first-layer-only" and i) else b.masked_fill(~b.isinf(), 0.0)
            y = y + l.a(h, h, bb, sc)
            h = l.n2(y)
            kv = h if f == "cross-kv-from-decoder-l1" and i == 1 else mem
            y = y + l.c(
                h, kv, self.bias(self.db, T, S, True) if f == "cross-gets-bias" else None, sc
            )
            y = y + l.ff(l.n3(y))
        y = self.nd(y)
        if f != "head-unscaled":
            y = y * self.c.d_model**-0.5
        return y @ self.emb.T


def port(model, fault="", style=""):
    return Port(model, fault, style == "fused").eval()
