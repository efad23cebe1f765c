"""LFM2 with its short convolution as shifted sums, attention by hand."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "B-x-swapped-with-C",
    "conv-ahead",
    "gate-after-only",
    "silu-on-conv",
    "q-norm-missing",
    "w1-w3",
    "rope-1e4",
    "embedding-norm-first",
)


class Port(nn.Module):
    def __init__(self, m, f):
        super().__init__()
        self.c, self.f = m.config, f
        self.sd = nn.ParameterDict(
            {
                k.replace(".", "/"): nn.Parameter(v.detach().clone())
                for k, v in m.state_dict().items()
                if k != "lm_head.weight"
            }
        )

    def g(self, k):
        return self.sd[("model." + k + ".weight").replace(".", "/")]

    def rms(self, x, k):
        return F.rms_norm(x, x.shape[-1:], self.g(k), self.c.norm_eps)

    def conv(self, h, p):
        f = self.f
        B, C, x = (h @ self.g(p + "conv.in_proj").T).chunk(3, -1)
        if f == "B-x-swapped-with-C":
            B, C = C, B
        u = x if f == "gate-after-only" else B * x
        w = self.g(p + "conv.conv")[:, 0]
        T = h.shape[1]
        K = w.shape[1]
        y = 0
        d = 1 if f == "conv-ahead" else 0
        u2 = F.pad(u, (0, 0, K - 1 - d, d))
        for j in range(K):
            y = y + u2[:, j : j + T] * w[:, j]
        if f == "silu-on-conv":
            y = F.silu(y)
        return (C * y) @ self.g(p + "conv.out_proj").T

    def attn(self, h, p):
        H, K = self.c.num_attention_heads, self.c.num_key_value_heads
        D = 12
        T = h.shape[1]
        q, k, v = (
            (h @ self.g(p + f"self_attn.{n}_proj").T).unflatten(-1, (-1, D)).transpose(1, 2)
            for n in "qkv"
        )
        q = q if self.f == "q-norm-missing" else self.rms(q, p + "self_attn.q_layernorm")
        k = self.rms(k, p + "self_attn.k_layernorm")
        a = torch.arange(T).float()[:, None] * (
            1e4 if self.f == "rope-1e4" else self.c.rope_parameters["rope_theta"]
        ) ** (-torch.arange(0, D, 2).float() / D)
        cs, sn = a.cos().to(h.dtype), a.sin().to(h.dtype)
        rot = lambda t: torch.cat(
            [
                t[..., : D // 2] * cs - t[..., D // 2 :] * sn,
                t[..., D // 2 :] * cs + t[..., : D // 2] * sn,
            ],
            -1,
        )
        k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
        s = (
            rot(q) @ rot(k).mT / D**0.5 + torch.full((T, T), float("-inf"), dtype=h.dtype).triu(1)
        ).softmax(-1)
        return (s @ v).transpose(1, 2).flatten(2) @ self.g(p + "self_attn.out_proj").T

    def forward(self, ids):
        x = self.g("embed_tokens")[ids]
        if self.f == "embedding-norm-first":
            x = self.rms(x, "embedding_norm")
        for i, kind in enumerate(self.c.layer_types):
            p = f"layers.{i}."
            h = self.rms(x, p + "operator_norm")
            x = x + (self.conv(h, p) if kind == "conv" else self.attn(h, p))
            h = self.rms(x, p + "ffn_norm")
            a, b = h @ self.g(p + "feed_forward.w1").T, h @ self.g(p + "feed_forward.w3").T
            if self.f == "w1-w3":
                a, b = b, a
            x = x + (F.silu(a) * b) @ self.g(p + "feed_forward.w2").T
        if self.f != "embedding-norm-first":
            x = self.rms(x, "embedding_norm")
        return x @ self.g("embed_tokens").T


def port(model, fault="", style=""):
    return Port(model, fault).eval()
