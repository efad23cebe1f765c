"""SmolLM3 in llama.cpp's order of things: interleaved rope with permuted weights, RoPE applied in a helper; q scaled early."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "nope-rotated",  # the NoPE layer (2) is rotated too
    "all-nope-l1",  # layer 1 not rotated
    "k-not-permuted",  # keys left unpermuted for the interleaved rope (all layers)
    "up-of-layer-0",  # layer 3's up weight is layer 0's
    "attn-half",  # attention output of layer 1 halved
    "softmax-axis",  # softmax over the queries axis
    "positions-one",  # positions start at 1 for queries only
    "cap-added",  # logits softcapped at 5
    "last-norm-twice",  # final norm applied twice
    "mlp-before",  # feed-forward before attention in layer 2
    "v-head-order",  # value heads reversed in layer 0
)


def ggml_rope(x, pos, theta):
    d = x.shape[-1]
    inv = theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    a = pos.to(torch.float32)[:, None] * inv
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    e, o = x[..., 0::2], x[..., 1::2]
    return torch.stack((e * c - o * s, e * s + o * c), -1).flatten(-2)


def perm(w, h):
    return w.reshape(h, 2, w.shape[0] // h // 2, -1).swapaxes(1, 2).reshape(w.shape)


class LayerCpp(nn.Module):
    def __init__(self, c, i, sd, fault):
        super().__init__()
        self.c, self.i, self.fault = c, i, fault
        w = lambda n: sd[f"model.layers.{i}.{n}.weight"]
        q, k, v = w("self_attn.q_proj"), w("self_attn.k_proj"), w("self_attn.v_proj")
        self.rot = bool(c.no_rope_layers[i])
        if self.rot:
            q = perm(q, c.num_attention_heads)
            k = k if fault == "k-not-permuted" else perm(k, c.num_key_value_heads)
        if fault == "nope-rotated":
            if not self.rot:
                q = perm(q, c.num_attention_heads)
                k = perm(k, c.num_key_value_heads)
            self.rot = True
        if fault == "all-nope-l1" and i == 1:
            self.rot = False
        if fault == "v-head-order" and i == 0:
            v = v.view(c.num_key_value_heads, -1, v.shape[1]).flip(0).reshape(v.shape)
        up = (
            sd["model.layers.0.mlp.up_proj.weight"]
            if fault == "up-of-layer-0" and i == 3
            else w("mlp.up_proj")
        )
        for n, t in dict(
            attn_q=q,
            attn_k=k,
            attn_v=v,
            attn_output=w("self_attn.o_proj"),
            ffn_gate=w("mlp.gate_proj"),
            ffn_up=up,
            ffn_down=w("mlp.down_proj"),
        ).items():
            lin = nn.Linear(t.shape[1], t.shape[0], bias=False)
            lin.weight.data.copy_(t)
            setattr(self, n, lin)
        self.attn_norm = nn.Parameter(w("input_layernorm").clone())
        self.ffn_norm = nn.Parameter(w("post_attention_layernorm").clone())

    def attention(self, x):
        c = self.c
        d = c.hidden_size // c.num_attention_heads
        T = x.shape[1]
        h = F.rms_norm(x, x.shape[-1:], self.attn_norm, c.rms_norm_eps)
        q, k, v = (
            m(h).unflatten(-1, (-1, d)).transpose(1, 2)
            for m in (self.attn_q, self.attn_k, self.attn_v)
        )
        pos = torch.arange(T)
        if self.rot:
            th = c.rope_parameters["rope_theta"]
            q = ggml_rope(q, pos + 1 if self.fault == "positions-one" else pos, th)
            k = ggml_rope(k, pos, th)
        g = c.num_attention_heads // c.num_key_value_heads
        q = (q * d**-0.5).unflatten(1, (-1, g))
        s = torch.einsum("bkgqd,bksd->bkgqs", q, k)
        s = s.masked_fill(pos[None] > pos[:, None], -1e30)
        p = s.softmax(-2 if self.fault == "softmax-axis" else -1)
        y = self.attn_output(
            torch.einsum("bkgqs,bksd->bkgqd", p, v).flatten(1, 2).transpose(1, 2).flatten(2)
        )
        return y * 0.5 if self.fault == "attn-half" and self.i == 1 else y

    def ffn(self, x):
        h = F.rms_norm(x, x.shape[-1:], self.ffn_norm, self.c.rms_norm_eps)
        return self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def forward(self, x):
        if self.fault == "mlp-before" and self.i == 2:
            x = x + self.ffn(x)
            return x + self.attention(x)
        x = x + self.attention(x)
        return x + self.ffn(x)


class Llm(nn.Module):
    def __init__(self, model, fault):
        super().__init__()
        sd = model.state_dict()
        self.c = model.config
        self.fault = fault
        self.token_embd = nn.Parameter(sd["model.embed_tokens.weight"].clone())
        self.output = nn.Parameter(sd["lm_head.weight"].clone())
        self.output_norm = nn.Parameter(sd["model.norm.weight"].clone())
        self.blk = nn.ModuleList(
            LayerCpp(self.c, i, sd, fault) for i in range(self.c.num_hidden_layers)
        )

    def forward(self, ids):
        x = self.token_embd[ids]
        for b in self.blk:
            x = b(x)
        n = lambda t: F.rms_norm(t, t.shape[-1:], self.output_norm, self.c.rms_norm_eps)
        x = n(n(x)) if self.fault == "last-norm-twice" else n(x)
        y = x @ self.output.T
        return 5 * torch.tanh(y / 5) if self.fault == "cap-added" else y


def port(model, fault=""):
    return Llm(model, fault).eval()
