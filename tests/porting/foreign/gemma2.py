"""Gemma 2 as in JAX: einsum over (N, D, H) weights, the scale folded into the query."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn

FAULTS = (
    "no-softcap",
    "no-final-cap",
    "embeddings-unscaled",
    "norm-plain",
    "mask-off-by-one",
    "scale-of-head",
    "windows-exchanged",
    "window-off-by-one",
    "no-post-norm",
)


class Einsum(nn.Module):
    def __init__(self, equation, w):
        super().__init__()
        self.equation, self.w = equation, nn.Parameter(w.clone())

    def forward(self, x):
        return torch.einsum(self.equation, x, self.w)


class Scale(nn.Module):
    def __init__(self, w, fault):
        super().__init__()
        self.scale, self.plus = nn.Parameter(w.clone()), 0 if fault == "norm-plain" else 1

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return (y * (self.plus + self.scale.float())).to(x.dtype)


def cap(x, c):
    return torch.tanh(x / c) * c


def rope(x, base=10000.0):
    """(B, T, N, H)."""
    h = x.shape[-1]
    scale = base ** (2 * torch.arange(h // 2, device=x.device) / h)
    ang = (torch.arange(x.shape[1], device=x.device)[:, None] / scale)[None, :, None]
    a, b = x.float().split(h // 2, -1)
    return torch.cat([a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin()], -1).to(x.dtype)


class Attn(nn.Module):
    def __init__(self, s, p, c, local, fault):
        super().__init__()
        h, d = c.head_dim, c.hidden_size
        self.c, self.local, self.fault = c, local, fault
        split = lambda n, k: s[p + n].view(k, h, d).transpose(1, 2)  # noqa: E731
        self.q_einsum = Einsum("btd,ndh->btnh", split("q_proj.weight", c.num_attention_heads))
        kv = torch.stack([split(f"{x}_proj.weight", c.num_key_value_heads) for x in "kv"])
        self.kv_einsum = Einsum("bsd,ckdh->cbskh", kv)
        self.o_einsum = Einsum(
            "btnh,nhd->btd", s[p + "o_proj.weight"].T.reshape(c.num_attention_heads, h, d)
        )

    def forward(self, x):
        c = self.c
        q, (k, v) = self.q_einsum(x), self.kv_einsum(x)
        q = (
            rope(q)
            * (c.head_dim if self.fault == "scale-of-head" else c.query_pre_attn_scalar) ** -0.5
        )
        k = rope(k)
        b, t, n, h = q.shape
        q = q.view(b, t, k.shape[2], -1, h)
        s = torch.einsum("btkgh,bskh->btkgs", q, k)
        if self.fault != "no-softcap":
            s = cap(s, c.attn_logit_softcapping)
        i, j = torch.arange(t, device=x.device)[:, None], torch.arange(t, device=x.device)[None]
        seen = j <= i + int(self.fault == "mask-off-by-one")
        if self.local:
            seen = seen & (j > i - c.sliding_window - int(self.fault == "window-off-by-one"))
        s = torch.where(seen[None, :, None, None], s, -2.38e38)
        return self.o_einsum(
            torch.einsum("btkgs,bskh->btkgh", s.softmax(-1), v).reshape(b, t, n, h)
        )


class Transformer(nn.Module):
    def __init__(self, s, c, fault):
        super().__init__()
        self.c, self.fault = c, fault
        self.table = nn.Parameter(s["model.embed_tokens.weight"].clone())
        self.layers = nn.ModuleList()
        for i in range(c.num_hidden_layers):
            p = f"model.layers.{i}."
            local = (i % 2 == 0) != (fault == "windows-exchanged")
            gating = torch.stack([s[p + "mlp.gate_proj.weight"].T, s[p + "mlp.up_proj.weight"].T])
            self.layers.append(
                nn.ModuleDict(
                    {
                        "pre_attn": Scale(s[p + "input_layernorm.weight"], fault),
                        "attn": Attn(s, p + "self_attn.", c, local, fault),
                        "post_attn": Scale(s[p + "post_attention_layernorm.weight"], fault),
                        "pre_ffw": Scale(s[p + "pre_feedforward_layernorm.weight"], fault),
                        "gating": Einsum("btd,cdf->cbtf", gating),
                        "linear": Einsum("btf,fd->btd", s[p + "mlp.down_proj.weight"].T),
                        "post_ffw": Scale(s[p + "post_feedforward_layernorm.weight"], fault),
                    }
                )
            )
        self.final = Scale(s["model.norm.weight"], fault)

    def forward(self, ids):
        x = self.table[ids]
        if self.fault != "embeddings-unscaled":
            x = x * torch.tensor(self.c.hidden_size**0.5, dtype=x.dtype)
        for i, l in enumerate(self.layers):
            y = l["attn"](l["pre_attn"](x))
            x = x + (y if self.fault == "no-post-norm" and i == 2 else l["post_attn"](y))
            gate, up = l["gating"](l["pre_ffw"](x))
            x = x + l["post_ffw"](
                l["linear"](torch.nn.functional.gelu(gate, approximate="tanh") * up)
            )
        y = self.final(x) @ self.table.T
        return y if self.fault == "no-final-cap" else cap(y, self.c.final_logit_softcapping)


def port(model, fault=""):
    """The port as modules of einsums."""
    return Transformer(model.state_dict(), model.config, fault).eval()
