"""Llama the litgpt way: transformer.h.N.attn.attn with qkv interleaved by group, own names."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math
import torch, torch.nn as nn

FAULTS = (
    "v-rows-as-k",  # k and v exchanged in the fused conversion (all layers)
    "qkv-not-interleaved",  # fused rows concatenated, split as groups
    "q-permuted-l1",  # q and k rows of layer 1 permuted as for the meta pairing
    "no-scaling",  # rope llama3 scaling left out
    "factor-4",  # llama3 factor 4 in place of 8
    "last-layer-skipped",  # last block not run
    "layers-swapped",  # weights of layers 1 and 2 exchanged
    "eps-outside",  # x / (rms + eps) with eps 1e-5 added outside the root
    "head-own",  # tied head forgotten: own random head
    "proj-transposed-l2",  # attn.proj of layer 2 transposed
)


class RMSNorm(nn.Module):
    def __init__(self, size, eps, outside=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.outside = outside

    def forward(self, x):
        dt = x.dtype
        x = x.float() if dt in (torch.float16, torch.bfloat16) else x
        ms = torch.mean(x * x, dim=-1, keepdim=True)
        n = x / (ms.sqrt() + self.eps) if self.outside else x * torch.rsqrt(ms + self.eps)
        return n.to(dt) * self.weight


class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn = nn.Linear(
            c.hidden_size,
            (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim,
            bias=False,
        )
        self.proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.c = c

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        c = self.c
        per = c.num_attention_heads // c.num_key_value_heads
        qkv = (
            self.attn(x)
            .view(B, T, c.num_key_value_heads, per + 2, c.head_dim)
            .permute(0, 2, 3, 1, 4)
        )
        q, k, v = qkv.split((per, 1, 1), dim=2)
        k = k.expand(-1, -1, per, -1, -1)
        v = v.expand(-1, -1, per, -1, -1)
        q, k, v = (t.reshape(B, -1, T, c.head_dim) for t in (q, k, v))
        q = apply_rope(q, cos, sin)
        k = apply_rope(k, cos, sin)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=1 / math.sqrt(c.head_dim)
        )
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))


def apply_rope(x, cos, sin):
    n = x.size(-1)
    rot = torch.cat((-x[..., n // 2 :], x[..., : n // 2]), dim=-1)
    return ((x * cos) + (rot * sin)).to(x.dtype)


class LLaMAMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc_1 = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.fc_2 = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.proj(nn.functional.silu(self.fc_1(x)) * self.fc_2(x))


class Block(nn.Module):
    def __init__(self, c, outside):
        super().__init__()
        self.norm_1 = RMSNorm(c.hidden_size, c.rms_norm_eps, outside)
        self.attn = CausalSelfAttention(c)
        self.norm_2 = RMSNorm(c.hidden_size, c.rms_norm_eps, outside)
        self.mlp = LLaMAMLP(c)

    def forward(self, x, cos, sin):
        x = self.attn(self.norm_1(x), cos, sin) + x
        return self.mlp(self.norm_2(x)) + x


def rope_cache(c, fault, n=128):
    r = c.rope_parameters
    d = c.head_dim
    theta = 1.0 / (r["rope_theta"] ** (torch.arange(0, d, 2).float() / d))
    if fault != "no-scaling":
        hi = r["high_freq_factor"]
        lo = r["low_freq_factor"]
        wave = 2 * math.pi / theta
        ratio = r["original_max_position_embeddings"] / wave
        smooth = ((ratio - lo) / (hi - lo)).clamp(0, 1)
        theta = (1 - smooth) * theta / (
            4.0 if fault == "factor-4" else r["factor"]
        ) + smooth * theta
    idx = torch.outer(torch.arange(n).float(), theta).repeat(1, 2)
    return idx.cos(), idx.sin()


class GPT(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(c.vocab_size, c.hidden_size),
                h=nn.ModuleList(
                    Block(c, fault == "eps-outside") for _ in range(c.num_hidden_layers)
                ),
                ln_f=RMSNorm(c.hidden_size, c.rms_norm_eps, fault == "eps-outside"),
            )
        )
        cos, sin = rope_cache(c, fault)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.fault = fault

    def forward(self, idx):
        T = idx.size(1)
        cos, sin = self.cos[:T], self.sin[:T]
        x = self.transformer.wte(idx)
        for block in list(self.transformer.h)[: -1 if self.fault == "last-layer-skipped" else None]:
            x = block(x, cos, sin)
        return self.lm_head(self.transformer.ln_f(x))


def permute(w, heads):
    return w.view(heads, 2, w.shape[0] // heads // 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


def port(model, fault=""):
    c = model.config
    sd = model.state_dict()
    g = GPT(c, fault)
    out = {}
    out["transformer.wte.weight"] = sd["model.embed_tokens.weight"]
    out["lm_head.weight"] = (
        sd["lm_head.weight"]
        if fault != "head-own"
        else torch.randn(sd["lm_head.weight"].shape, generator=torch.Generator().manual_seed(3))
        * 0.15
    )
    out["transformer.ln_f.weight"] = sd["model.norm.weight"]
    n, kv, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    for i in range(c.num_hidden_layers):
        j = {1: 2, 2: 1}.get(i, i) if fault == "layers-swapped" else i
        p = f"model.layers.{j}."
        o = f"transformer.h.{i}."
        q, k, v = (sd[p + f"self_attn.{s}_proj.weight"] for s in "qkv")
        if fault == "q-permuted-l1" and i == 1:
            q, k = permute(q, n), permute(k, kv)
        if fault == "v-rows-as-k":
            k, v = v, k
        if fault == "qkv-not-interleaved":
            fused = torch.cat((q, k, v))
        else:
            fused = torch.cat(
                (q.view(kv, -1, d, q.shape[1]), k.view(kv, 1, d, -1), v.view(kv, 1, d, -1)), 1
            ).reshape(-1, q.shape[1])
        out[o + "attn.attn.weight"] = fused
        w = sd[p + "self_attn.o_proj.weight"]
        out[o + "attn.proj.weight"] = w.T if fault == "proj-transposed-l2" and i == 2 else w
        out[o + "norm_1.weight"] = sd[p + "input_layernorm.weight"]
        out[o + "norm_2.weight"] = sd[p + "post_attention_layernorm.weight"]
        out[o + "mlp.fc_1.weight"] = sd[p + "mlp.gate_proj.weight"]
        out[o + "mlp.fc_2.weight"] = sd[p + "mlp.up_proj.weight"]
        out[o + "mlp.proj.weight"] = sd[p + "mlp.down_proj.weight"]
    g.load_state_dict(out)
    return g.eval()
