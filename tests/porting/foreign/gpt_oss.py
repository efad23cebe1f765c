"""gpt-oss as OpenAI's torch reference: unbatched einsums over experts, sinks column, fused qkv, interleaved swiglu."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math
import torch, torch.nn as nn

FAULTS = (
    "sinks-dropped",  # no sink column
    "swiglu-halves",  # gate and up as halves, not interleaved
    "no-up-one",  # (up) * glu without + 1
    "alpha-one",  # plain SiLU (alpha 1)
    "router-before-topk",  # softmax over all experts, then top k, not renormalised
    "no-concentration",  # yarn attention factor (0.1 ln s + 1) forgotten
    "window-odd-layers",  # window on the odd layers
    "router-bias-dropped",  # router bias forgotten
    "down-bias-unweighted",  # expert down bias added after weighting
    "truncate",  # yarn with truncated bounds
)


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x):
        t, dt = (x if x.dtype == torch.float64 else x.float()), x.dtype
        t = t * torch.rsqrt(torch.mean(t**2, -1, keepdim=True) + 1e-5)
        return (t * self.scale).to(dt)


def table(c, T, fault):
    r = c.rope_parameters
    d = c.head_dim
    s = r["factor"]
    half = d // 2
    freq = r["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float) / d)
    conc = 1.0 if fault == "no-concentration" else 0.1 * math.log(s) + 1.0
    bound = lambda b: (
        half
        * math.log(r["original_max_position_embeddings"] / (b * 2 * math.pi))
        / math.log(r["rope_theta"])
    )
    low, high = bound(r["beta_fast"]), bound(r["beta_slow"])
    low = max(low, 0) if True else low
    if fault == "truncate":
        low, high = max(math.floor(low), 0), min(math.ceil(high), d - 1)
    ramp = ((torch.arange(half, dtype=torch.float) - low) / (high - low)).clamp(0, 1)
    inv = (1 / (s * freq)) * ramp + (1 / freq) * (1 - ramp)
    f = torch.outer(torch.arange(T, dtype=torch.float), inv)
    return f.cos() * conc, f.sin() * conc


def rotate(x, cos, sin):
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def sdpa(Q, K, V, S, scale, window):
    n, heads, d = Q.shape
    q_mult = heads // K.shape[1]
    Q = Q.view(n, -1, q_mult, d)
    K = K[:, :, None].expand(-1, -1, q_mult, -1)
    V = V[:, :, None].expand(-1, -1, q_mult, -1)
    mask = torch.triu(Q.new_full((n, n), -float("inf")), diagonal=1)
    if window:
        mask += torch.tril(mask.new_full((n, n), -float("inf")), diagonal=-window)
    QK = torch.einsum("qhmd,khmd->hmqk", Q, K) * scale + mask
    if S is not None:
        QK = torch.cat((QK, S.reshape(QK.shape[0], q_mult, 1, 1).expand(-1, -1, n, -1)), -1)
    W = torch.softmax(QK, -1)
    if S is not None:
        W = W[..., :-1]
    return torch.einsum("hmqk,khmd->qhmd", W, V).reshape(n, -1)


class AttentionBlock(nn.Module):
    def __init__(self, c, i, fault):
        super().__init__()
        self.c = c
        self.fault = fault
        self.window = c.sliding_window if i % 2 == (1 if fault == "window-odd-layers" else 0) else 0
        self.norm = RMSNorm(c.hidden_size)
        self.qkv = nn.Linear(
            c.hidden_size, c.head_dim * (c.num_attention_heads + 2 * c.num_key_value_heads)
        )
        self.out = nn.Linear(c.head_dim * c.num_attention_heads, c.hidden_size)
        self.sinks = nn.Parameter(torch.empty(c.num_attention_heads))

    def forward(self, x):
        c = self.c
        n, m = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        t = self.qkv(self.norm(x))
        q, k, v = (
            t[:, :n].view(len(t), -1, c.head_dim),
            t[:, n : n + m].view(len(t), -1, c.head_dim),
            t[:, n + m :].view(len(t), -1, c.head_dim),
        )
        cos, sin = table(c, len(t), self.fault)
        return x + self.out(
            sdpa(
                rotate(q, cos, sin),
                rotate(k, cos, sin),
                v,
                None if self.fault == "sinks-dropped" else self.sinks,
                c.head_dim**-0.5,
                self.window,
            )
        )


def swiglu(x, fault):
    g, l = x.chunk(2, -1) if fault == "swiglu-halves" else (x[..., ::2], x[..., 1::2])
    if fault != "no-limit-l":
        g = g.clamp(max=7.0)
        l = l.clamp(-7.0, 7.0)
    return (
        g
        * torch.sigmoid((1.0 if fault == "alpha-one" else 1.702) * g)
        * (l + (0 if fault == "no-up-one" else 1))
    )


class MLPBlock(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        self.fault = fault
        self.k = c.num_experts_per_tok
        self.norm = RMSNorm(c.hidden_size)
        self.gate = nn.Linear(c.hidden_size, c.num_local_experts)
        E, D, F = c.num_local_experts, c.hidden_size, c.intermediate_size
        self.mlp1_weight = nn.Parameter(torch.empty(E, 2 * F, D))
        self.mlp1_bias = nn.Parameter(torch.empty(E, 2 * F))
        self.mlp2_weight = nn.Parameter(torch.empty(E, D, F))
        self.mlp2_bias = nn.Parameter(torch.empty(E, D))

    def forward(self, x):
        t = self.norm(x)
        g = nn.functional.linear(
            t, self.gate.weight, None if self.fault == "router-bias-dropped" else self.gate.bias
        )
        if self.fault == "router-before-topk":
            w, idx = g.softmax(-1).topk(self.k, -1)
        else:
            top = g.topk(self.k, -1)
            idx = top.indices
            w = top.values.softmax(-1)
        t = swiglu(
            torch.einsum("beck,bk->bec", self.mlp1_weight[idx], t) + self.mlp1_bias[idx], self.fault
        )
        t = torch.einsum("beck,bek->bec", self.mlp2_weight[idx], t)
        if self.fault == "down-bias-unweighted":
            return x + torch.einsum("bec,be->bc", t, w) + self.mlp2_bias[idx].sum(1)
        return x + torch.einsum("bec,be->bc", t + self.mlp2_bias[idx], w)


class Transformer(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        self.embedding = nn.Embedding(c.vocab_size, c.hidden_size)
        self.block = nn.ModuleList(
            nn.ModuleDict(dict(attn=AttentionBlock(c, i, fault), mlp=MLPBlock(c, fault)))
            for i in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size)
        self.unembedding = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def one(self, x):
        x = self.embedding(x)
        for b in self.block:
            x = b["mlp"](b["attn"](x))
        return self.unembedding(self.norm(x))

    def forward(self, ids):
        return torch.stack([self.one(row) for row in ids])


def port(model, fault=""):
    c = model.config
    sd = model.state_dict()
    t = Transformer(c, fault)
    o = {
        "embedding.weight": sd["model.embed_tokens.weight"],
        "unembedding.weight": sd["lm_head.weight"],
        "norm.scale": sd["model.norm.weight"],
    }
    for i in range(c.num_hidden_layers):
        p = f"model.layers.{i}."
        a = f"block.{i}.attn."
        m = f"block.{i}.mlp."
        for s in ("weight", "bias"):
            o[a + "qkv." + s] = torch.cat([sd[p + f"self_attn.{n}_proj.{s}"] for n in "qkv"])
            o[a + "out." + s] = sd[p + "self_attn.o_proj." + s]
            o[m + "gate." + s] = sd[p + "mlp.router." + s]
        o[a + "sinks"] = sd[p + "self_attn.sinks"]
        o[a + "norm.scale"] = sd[p + "input_layernorm.weight"]
        o[m + "norm.scale"] = sd[p + "post_attention_layernorm.weight"]
        e = p + "mlp.experts."
        o[m + "mlp1_weight"] = sd[e + "gate_up_proj"].mT
        o[m + "mlp1_bias"] = sd[e + "gate_up_proj_bias"]
        o[m + "mlp2_weight"] = sd[e + "down_proj"].mT
        o[m + "mlp2_bias"] = sd[e + "down_proj_bias"]
    t.load_state_dict(o)
    return t.eval()
