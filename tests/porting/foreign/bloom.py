"""Bloom as nanoGPT-like code with separate q, k, v, and ALiBi as a distance bias."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math
import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "slopes-pow2",  # slopes of 8 heads cut to 6 (not the interpolation for non powers of two)
    "slopes-zero-based",  # slopes start at 2^0
    "alibi-scaled",  # ALiBi added before the scale (bias divided by sqrt d)
    "no-embed-norm",  # embedding layer norm forgotten
    "qkv-blocks",  # fused weight split in three blocks, not per head
    "gelu-erf",  # exact gelu in place of tanh
    "bias-q-l1",  # query bias of layer 1 dropped
    "residual-after-ln",  # residual from the normed input
    "alibi-missing",  # no ALiBi
    "alibi-sign",  # far keys favoured
)


def slopes(n, fault):
    if fault == "slopes-pow2":
        return torch.tensor([2 ** (-8 * (i + 1) / 8) for i in range(n)])
    p = 2 ** math.floor(math.log2(n))
    base = 2 ** (-(2 ** -(math.log2(p) - 3)))
    s = [base ** (i + (0 if fault == "slopes-zero-based" else 1)) for i in range(p)]
    if p < n:
        extra = 2 ** (-(2 ** -(math.log2(2 * p) - 3)))
        s += [extra ** (2 * i + 1) for i in range(n - p)]
    return torch.tensor(s)


class Attn(nn.Module):
    def __init__(self, d, h, fault):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = nn.Linear(d, d)
        self.h = h
        self.fault = fault
        self.register_buffer("slopes", slopes(h, fault), persistent=False)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        T = x.shape[1]
        n = torch.arange(T)
        dist = (n[None] - n[:, None]).to(x.dtype)
        bias = self.slopes.to(x.dtype)[:, None, None] * dist
        if self.fault == "alibi-missing":
            bias = bias * 0
        if self.fault == "alibi-sign":
            bias = -bias
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s + (bias / q.shape[-1] ** 0.5 if self.fault == "alibi-scaled" else bias)
        s = s.masked_fill(n[None] > n[:, None], float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, d, h, eps, fault):
        super().__init__()
        self.a = Attn(d, h, fault)
        self.n1 = nn.LayerNorm(d, eps=eps)
        self.n2 = nn.LayerNorm(d, eps=eps)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)
        self.fault = fault

    def forward(self, x):
        h = self.n1(x)
        x = (h if self.fault == "residual-after-ln" else x) + self.a(h)
        h = self.n2(x)
        return x + self.down(
            F.gelu(self.up(h), approximate="none" if self.fault == "gelu-erf" else "tanh")
        )


class Bloom(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        d = c.hidden_size
        self.tok = nn.Embedding(c.vocab_size, d)
        self.tok_norm = nn.LayerNorm(d, eps=c.layer_norm_epsilon)
        self.body = nn.Sequential(
            *[Block(d, c.n_head, c.layer_norm_epsilon, fault) for _ in range(c.n_layer)]
        )
        self.out_norm = nn.LayerNorm(d, eps=c.layer_norm_epsilon)
        self.fault = fault

    def forward(self, ids):
        x = self.tok(ids)
        if self.fault != "no-embed-norm":
            x = self.tok_norm(x)
        return F.linear(self.out_norm(self.body(x)), self.tok.weight)


def port(model, fault=""):
    c = model.config
    sd = model.transformer.state_dict()
    m = Bloom(c, fault)
    d = c.hidden_size
    h = c.n_head
    put = lambda lin, w: lin.load_state_dict(w)
    of = lambda name: {k: sd[f"{name}.{k}"] for k in ("weight", "bias")}
    m.tok.weight.data.copy_(sd["word_embeddings.weight"])
    put(m.tok_norm, of("word_embeddings_layernorm"))
    put(m.out_norm, of("ln_f"))
    for i, b in enumerate(m.body):
        p = f"h.{i}."
        w, bias = (
            sd[p + "self_attention.query_key_value.weight"],
            sd[p + "self_attention.query_key_value.bias"],
        )
        if fault == "qkv-blocks":
            ws, bs = w.chunk(3), bias.chunk(3)
        else:
            ws = [w.view(h, 3, d // h, d)[:, j].reshape(d, d) for j in range(3)]
            bs = [bias.view(h, 3, d // h)[:, j].reshape(d) for j in range(3)]
        for lin, ww, bb in zip((b.a.q, b.a.k, b.a.v), ws, bs):
            put(lin, {"weight": ww, "bias": bb})
        if fault == "bias-q-l1" and i == 1:
            b.a.q.bias.data.zero_()
        put(b.a.o, of(p + "self_attention.dense"))
        put(b.n1, of(p + "input_layernorm"))
        put(b.n2, of(p + "post_attention_layernorm"))
        put(b.up, of(p + "mlp.dense_h_to_4h"))
        put(b.down, of(p + "mlp.dense_4h_to_h"))
    return m.eval()
