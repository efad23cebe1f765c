"""BERT masked LM: heads first, one fused in-projection as nn.MultiheadAttention has it, or separate; token types folded into the positions table."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn as nn, torch.nn.functional as F

FAULTS = (
    "token-type-missing",
    "eps-1e-5",
    "gelu-tanh",
    "pre-norm",
    "pos-offset",
    "no-head-norm",
    "scale-hidden",
    "causal",
    "no-decoder-bias",
    "residual-of-norm-l1",
)
STYLES = ("", "fused")


class Enc(nn.Module):
    def __init__(s, m, f, style):
        super().__init__()
        c = m.config
        sd = {k: v.clone() for k, v in m.state_dict().items()}
        s.c, s.f, s.style = c, f, style
        P = lambda k: nn.Parameter(sd[k])
        tt = sd["bert.embeddings.token_type_embeddings.weight"][0]
        s.words = P("bert.embeddings.word_embeddings.weight")
        pos = sd["bert.embeddings.position_embeddings.weight"]
        s.places = nn.Parameter(pos if f == "token-type-missing" else pos + tt)
        s.en = nn.ParameterList(
            [P("bert.embeddings.LayerNorm.weight"), P("bert.embeddings.LayerNorm.bias")]
        )
        s.layers = nn.ModuleList()
        for i in range(c.num_hidden_layers):
            g = lambda n: sd[f"bert.encoder.layer.{i}.{n}"]
            l = nn.Module()
            qkv = [
                [g(f"attention.self.{n}.{t}") for n in ("query", "key", "value")]
                for t in ("weight", "bias")
            ]
            l.in_w, l.in_b = nn.Parameter(torch.cat(qkv[0])), nn.Parameter(torch.cat(qkv[1]))
            l.out = nn.ParameterList(
                [nn.Parameter(g("attention.output.dense." + t)) for t in ("weight", "bias")]
            )
            l.n1 = nn.ParameterList(
                [nn.Parameter(g("attention.output.LayerNorm." + t)) for t in ("weight", "bias")]
            )
            l.up = nn.ParameterList(
                [nn.Parameter(g("intermediate.dense." + t)) for t in ("weight", "bias")]
            )
            l.down = nn.ParameterList(
                [nn.Parameter(g("output.dense." + t)) for t in ("weight", "bias")]
            )
            l.n2 = nn.ParameterList(
                [nn.Parameter(g("output.LayerNorm." + t)) for t in ("weight", "bias")]
            )
            s.layers.append(l)
        s.tw = nn.ParameterList(
            [
                P("cls.predictions.transform.dense.weight"),
                P("cls.predictions.transform.dense.bias"),
                P("cls.predictions.transform.LayerNorm.weight"),
                P("cls.predictions.transform.LayerNorm.bias"),
                P("cls.predictions.bias"),
            ]
        )

    def ln(s, x, n):
        return F.layer_norm(
            x, x.shape[-1:], n[0], n[1], 1e-5 if s.f == "eps-1e-5" else s.c.layer_norm_eps
        )

    def attend(s, x, l):
        B, T, D = x.shape
        H = s.c.num_attention_heads
        if s.style == "fused":
            q, k, v = F.linear(x, l.in_w, l.in_b).view(B, T, 3, H, -1).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (
                F.linear(x, w, b).view(B, T, H, -1).transpose(1, 2)
                for w, b in zip(l.in_w.chunk(3), l.in_b.chunk(3))
            )
        a = q @ k.mT * ((D if s.f == "scale-hidden" else D // H) ** -0.5)
        if s.f == "causal":
            a = a.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
        return F.linear((a.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D), *l.out)

    def forward(s, input_ids):
        at = torch.arange(input_ids.shape[1]) + (1 if s.f == "pos-offset" else 0)
        x = s.ln(s.words[input_ids] + s.places[at], s.en)
        gelu = lambda y: F.gelu(y, approximate="tanh" if s.f == "gelu-tanh" else "none")
        for i, l in enumerate(s.layers):
            if s.f == "pre-norm":
                x = x + s.attend(s.ln(x, l.n1), l)
                x = x + F.linear(gelu(F.linear(s.ln(x, l.n2), *l.up)), *l.down)
                continue
            h = s.ln(x + s.attend(x, l), l.n1)
            x = s.ln(
                (x if s.f == "residual-of-norm-l1" and i == 1 else h)
                + F.linear(gelu(F.linear(h, *l.up)), *l.down),
                l.n2,
            )
        t = F.gelu(
            F.linear(x, s.tw[0], s.tw[1]), approximate="tanh" if s.f == "gelu-tanh" else "none"
        )
        if s.f != "no-head-norm":
            t = s.ln(t, s.tw[2:4])
        y = t @ s.words.T
        return y if s.f == "no-decoder-bias" else y + s.tw[4]


def port(model, fault="", style=""):
    return Enc(model, fault, style).eval()
