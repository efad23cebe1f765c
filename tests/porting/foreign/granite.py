"""Granite as one flat class with a list of layer dicts, post-scaled embeddings at load, and muP scales as attributes."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "no-residual-scale",  # residual multiplier forgotten
    "residual-attn-only",  # residual multiplier on attention only
    "attn-scale-default",  # 1/sqrt(d) in place of 0.125
    "logits-multiplied",  # logits multiplied by 4 in place of divided
    "embed-scale-forgotten",  # embedding multiplier forgotten
    "embed-scale-leaks",  # tied head also scaled by the embedding multiplier (folded at load)
    "res-scale-on-stream",  # multiplier on the stream, not the branch
    "mlp-swapped-l2",  # gate and up exchanged in layer 2
    "rope-theta",  # rope theta 1e6 in place of 1e4
    "norm-eps",  # eps 1e-5 in place of 1e-6
)


class Granite(nn.Module):
    def __init__(self, model, fault):
        super().__init__()
        c = self.c = model.config
        self.f = fault
        sd = model.state_dict()
        emb = sd["model.embed_tokens.weight"]
        self.wte = nn.Parameter(
            emb.clone() * (c.embedding_multiplier if fault != "embed-scale-forgotten" else 1.0)
        )
        self.head = nn.Parameter(
            self.wte.detach().clone() if fault == "embed-scale-leaks" else emb.clone()
        )
        self.layers = nn.ModuleList()
        for i in range(c.num_hidden_layers):
            g = lambda n: nn.Parameter(sd[f"model.layers.{i}.{n}.weight"].clone())
            self.layers.append(
                nn.ParameterDict(
                    dict(
                        wq=g("self_attn.q_proj"),
                        wk=g("self_attn.k_proj"),
                        wv=g("self_attn.v_proj"),
                        wo=g("self_attn.o_proj"),
                        n1=g("input_layernorm"),
                        n2=g("post_attention_layernorm"),
                        w1=g("mlp.gate_proj"),
                        w3=g("mlp.up_proj"),
                        w2=g("mlp.down_proj"),
                    )
                )
            )
        self.norm = nn.Parameter(sd["model.norm.weight"].clone())

    def rn(self, x, w):
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        return w * (
            y
            * torch.rsqrt(
                y.square().mean(-1, True) + (1e-5 if self.f == "norm-eps" else self.c.rms_norm_eps)
            )
        ).to(x.dtype)

    def forward(self, ids):
        c, f = self.c, self.f
        x = F.embedding(ids, self.wte)
        T = ids.shape[1]
        d = c.hidden_size // c.num_attention_heads
        inv = 1.0 / (
            (1e6 if f == "rope-theta" else c.rope_parameters["rope_theta"])
            ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
        )
        ang = torch.arange(T, dtype=torch.float32)[:, None] * inv
        cos, sin = (
            torch.cat((ang, ang), -1).cos().to(x.dtype),
            torch.cat((ang, ang), -1).sin().to(x.dtype),
        )
        turn = lambda t: t * cos + torch.cat((-t[..., d // 2 :], t[..., : d // 2]), -1) * sin
        m = c.residual_multiplier
        for i, p in enumerate(self.layers):
            h = self.rn(x, p["n1"])
            q, k, v = (
                F.linear(h, p[n]).unflatten(-1, (-1, d)).transpose(1, 2) for n in ("wq", "wk", "wv")
            )
            k, v = (
                t.repeat_interleave(c.num_attention_heads // c.num_key_value_heads, 1)
                for t in (k, v)
            )
            a = F.scaled_dot_product_attention(
                turn(q),
                turn(k),
                v,
                is_causal=True,
                scale=d**-0.5 if f == "attn-scale-default" else c.attention_multiplier,
            )
            a = F.linear(a.transpose(1, 2).flatten(2), p["wo"])
            x = (
                x * m + a
                if f == "res-scale-on-stream"
                else x + a * (1.0 if f == "no-residual-scale" else m)
            )
            h = self.rn(x, p["n2"])
            g, u = F.linear(h, p["w1"]), F.linear(h, p["w3"])
            if f == "mlp-swapped-l2" and i == 2:
                g, u = u, g
            y = F.linear(F.silu(g) * u, p["w2"])
            x = (
                x * m + y
                if f == "res-scale-on-stream"
                else x + y * (1.0 if f in ("no-residual-scale", "residual-attn-only") else m)
            )
        logits = F.linear(self.rn(x, self.norm), self.head)
        return logits * c.logits_scaling if f == "logits-multiplied" else logits / c.logits_scaling


def port(model, fault=""):
    return Granite(model, fault).eval()
