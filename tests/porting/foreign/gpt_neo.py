"""GPT-Neo as a nanoGPT fork: a fused c_attn stored transposed, local layers by a mask."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math, torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "scaled",
    "all-global",
    "all-local",
    "local-even",
    "window-plus-one",
    "gelu-exact",
    "qkv-swapped",
    "c-proj-not-transposed",
    "pos-from-one",
    "pos-missing",
    "eps-1e-6-f",
    "ln2-as-ln1-l2",
    "out-bias-l3",
    "post-ln",
)


class CausalSelf(nn.Module):
    def __init__(self, a, c, local, f, i, style):
        super().__init__()
        self.h = c.num_heads
        self.f, self.style, self.local, self.w = (
            f,
            style,
            local,
            c.window_size + (1 if f == "window-plus-one" else 0),
        )
        parts = [a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]
        if f == "qkv-swapped":
            parts[0], parts[1] = parts[1], parts[0]
        self.c_attn = nn.Parameter(torch.cat(parts).detach().T.contiguous())
        self.c_proj = nn.Parameter(
            (
                a.out_proj.weight.detach()
                if f == "c-proj-not-transposed"
                else a.out_proj.weight.detach().T
            )
            .contiguous()
            .clone()
        )
        self.b = nn.Parameter(a.out_proj.bias.detach().clone())
        if f == "out-bias-l3" and i == 3:
            self.b.data.zero_()

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (x @ self.c_attn).split(C, 2)
        q, k, v = (t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in (q, k, v))
        ok = torch.ones(T, T, dtype=torch.bool).tril()
        if self.local:
            ok = ok & torch.ones(T, T, dtype=torch.bool).triu(1 - self.w)
        sc = 1.0 if self.f != "scaled" else 1 / math.sqrt(C // self.h)
        if self.style == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok, scale=sc)
        else:
            y = (
                (q @ k.transpose(-1, -2) * sc)
                .masked_fill(~ok, torch.finfo(x.dtype).min)
                .softmax(-1)
            ) @ v
        return y.transpose(1, 2).reshape(B, T, C) @ self.c_proj + self.b


class Block(nn.Module):
    def __init__(self, b, c, f, i, style):
        super().__init__()
        self.f = f
        local = i % 2 == 1
        if f == "all-global":
            local = False
        if f == "all-local":
            local = True
        if f == "local-even":
            local = not local
        self.ln_1, self.ln_2 = nn.LayerNorm(c.hidden_size), nn.LayerNorm(c.hidden_size)
        self.ln_1.load_state_dict(b.ln_1.state_dict())
        self.ln_2.load_state_dict(
            (b.ln_1 if f == "ln2-as-ln1-l2" and i == 2 else b.ln_2).state_dict()
        )
        self.attn = CausalSelf(b.attn.attention, c, local, f, i, style)
        self.mlp = nn.Sequential(
            nn.Linear(c.hidden_size, c.intermediate_size),
            nn.GELU(approximate="none" if f == "gelu-exact" else "tanh"),
            nn.Linear(c.intermediate_size, c.hidden_size),
        )
        self.mlp[0].load_state_dict(b.mlp.c_fc.state_dict())
        self.mlp[2].load_state_dict(b.mlp.c_proj.state_dict())

    def forward(self, x):
        if self.f == "post-ln":
            x = self.ln_1(x + self.attn(x))
            return self.ln_2(x + self.mlp(x))
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoNeo(nn.Module):
    def __init__(self, m, f, style):
        super().__init__()
        t, c = m.transformer, m.config
        self.f = f
        self.wte = nn.Embedding(c.vocab_size, c.hidden_size)
        self.wpe = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.wte.load_state_dict(t.wte.state_dict())
        self.wpe.load_state_dict(t.wpe.state_dict())
        self.h = nn.ModuleList(Block(b, c, f, i, style) for i, b in enumerate(t.h))
        self.ln_f = nn.LayerNorm(c.hidden_size, eps=1e-3 if f == "eps-1e-6-f" else 1e-5)
        self.ln_f.load_state_dict(t.ln_f.state_dict())
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        pos = torch.arange(idx.shape[1], device=idx.device) + (1 if self.f == "pos-from-one" else 0)
        x = self.wte(idx)
        if self.f != "pos-missing":
            x = x + self.wpe(pos)
        for b in self.h:
            x = b(x)
        return self.lm_head(self.ln_f(x))


def port(model, fault="", style=""):
    return NanoNeo(model, fault, style).eval()
