"""CodeGen with its projections taken apart at load (four shards), sdpa, rotation of neighbours."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "mp-ignored",
    "kv-order",
    "rope-halves",
    "rope-all",
    "sequential",
    "gelu-exact",
    "no-head-bias",
    "eps-1e-12",
    "scale-hidden",
    "mlp-of-x-l1",
    "fc-out-bias-l2",
    "out-transposed",
    "rope-theta-v",
)


class Layer(nn.Module):
    def __init__(self, b, c, f, i, style):
        super().__init__()
        self.f, self.i, self.style = f, i, style
        E, H = c.n_embd, c.n_head
        self.h, self.d, self.rd = H, E // H, c.rotary_dim
        w = b.attn.qkv_proj.weight.detach()
        if f == "mp-ignored":
            q, v, k = w.chunk(3)
        else:
            w = w.view(4, 3, E // 4, E)
            q, v, k = (w[:, j].reshape(E, E) for j in range(3))
        if f == "kv-order":
            k, v = v, k
        self.wq, self.wk, self.wv = (nn.Parameter(t.clone()) for t in (q, k, v))
        o = b.attn.out_proj.weight.detach()
        self.wo = nn.Parameter((o.T if f == "out-transposed" else o).clone())
        self.ln = nn.LayerNorm(E, eps=1e-12 if f == "eps-1e-12" else c.layer_norm_epsilon)
        self.ln.load_state_dict(b.ln_1.state_dict())
        self.up = nn.Linear(E, b.mlp.fc_in.out_features)
        self.up.load_state_dict(b.mlp.fc_in.state_dict())
        self.down = nn.Linear(b.mlp.fc_in.out_features, E)
        self.down.load_state_dict(b.mlp.fc_out.state_dict())
        if f == "fc-out-bias-l2" and i == 2:
            self.down.bias.data.zero_()

    def turn(self, x):
        rd = self.d if self.f == "rope-all" else self.rd
        r, p = x[..., :rd], x[..., rd:]
        T = x.shape[-2]
        inv = (500000.0 if self.f == "rope-theta-v" else 1e4) ** (
            -torch.arange(0, rd, 2).to(x.dtype if x.dtype == torch.float64 else torch.float32) / rd
        )
        a = torch.arange(T)[:, None] * inv
        if self.style == "complex" and not self.f and x.dtype in (torch.float32, torch.float64):
            z = torch.view_as_complex(r.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
                torch.ones_like(a), a
            )
            return torch.cat([torch.view_as_real(z).flatten(-2).to(x.dtype), p], -1)
        c, s = a.cos(), a.sin()
        if self.f == "rope-halves":
            h1, h2 = r.chunk(2, -1)
            r = torch.cat([h1 * c - h2 * s, h2 * c + h1 * s], -1)
        else:
            e, o = r[..., ::2], r[..., 1::2]
            r = torch.stack([e * c - o * s, o * c + e * s], -1).flatten(-2)
        return torch.cat([r.to(x.dtype), p], -1)

    def attn(self, x):
        q, k, v = (
            (x @ w.T).unflatten(-1, (self.h, self.d)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        a = F.scaled_dot_product_attention(
            self.turn(q),
            self.turn(k),
            v,
            is_causal=True,
            scale=(self.h * self.d) ** -0.5 if self.f == "scale-hidden" else None,
        )
        return a.transpose(1, 2).flatten(2) @ self.wo.T

    def mlp(self, x):
        return self.down(
            F.gelu(self.up(x), approximate="none" if self.f == "gelu-exact" else "tanh")
        )

    def forward(self, x):
        h = self.ln(x)
        if self.f == "sequential":
            x = x + self.attn(h)
            return x + self.mlp(self.ln(x))
        return x + self.attn(h) + self.mlp(x if self.f == "mlp-of-x-l1" and self.i == 1 else h)


class Port(nn.Module):
    def __init__(self, m, f, style):
        super().__init__()
        t = m.transformer
        self.wte = nn.Embedding.from_pretrained(t.wte.weight.detach().clone(), freeze=False)
        self.blocks = nn.ModuleList(Layer(b, m.config, f, i, style) for i, b in enumerate(t.h))
        self.ln_f = nn.LayerNorm(m.config.n_embd, eps=m.config.layer_norm_epsilon)
        self.ln_f.load_state_dict(t.ln_f.state_dict())
        self.head = nn.Linear(m.config.n_embd, m.config.vocab_size)
        self.head.load_state_dict(m.lm_head.state_dict())
        if f == "no-head-bias":
            self.head.bias = None

    def forward(self, ids):
        x = self.wte(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln_f(x))


def port(model, fault="", style=""):
    return Port(model, fault, style).eval()
