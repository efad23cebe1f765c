"""OPT: learned positions with an offset of two, ReLU, biases; state in a plain list of dicts; time first."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch, torch.nn.functional as F

FAULTS = (
    "pos-no-offset",
    "gelu",
    "no-final-norm",
    "fc2-bias-l2",
    "v-heads-reversed",
    "scale-on-key-too",
    "residual-after-norm",
    "k-bias-in-v-l1",
)
STYLES = ("", "batch-first")


class Opt:
    def __init__(s, model, fault, style):
        s.cfg = model.config
        s.fault, s.style = fault, style
        sd = model.state_dict()
        s.heads = s.cfg.num_attention_heads
        pre = "model.decoder."
        s.tok, s.pos = (
            sd[pre + "embed_tokens.weight"].clone(),
            sd[pre + "embed_positions.weight"].clone(),
        )
        s.fin = [sd[pre + "final_layer_norm." + t].clone() for t in ("weight", "bias")]
        s.state = [
            {
                k.removeprefix(f"{pre}layers.{i}."): v.clone()
                for k, v in sd.items()
                if k.startswith(f"{pre}layers.{i}.")
            }
            for i in range(s.cfg.num_hidden_layers)
        ]
        if fault == "v-heads-reversed":
            for l in s.state:
                d = s.cfg.hidden_size // s.heads
                for t in ("weight", "bias"):
                    v = l["self_attn.v_proj." + t]
                    l["self_attn.v_proj." + t] = (
                        v.view(s.heads, d, *v.shape[1:]).flip(0).reshape(v.shape).clone()
                    )
        if fault == "k-bias-in-v-l1":
            s.state[1]["self_attn.v_proj.bias"] = s.state[1]["self_attn.k_proj.bias"].clone()
        if fault == "fc2-bias-l2":
            s.state[2]["fc2.bias"].zero_()

    def __call__(s, ids):
        B, T = ids.shape
        off = 0 if s.fault == "pos-no-offset" else 2
        x = s.tok[ids] + s.pos[off : off + T]
        if s.style != "batch-first":
            x = x.transpose(0, 1)
        D = x.shape[-1]
        ln = lambda y, l, n: F.layer_norm(y, (D,), l[n + ".weight"], l[n + ".bias"])
        for l in s.state:
            lin = lambda y, n: F.linear(y, l[n + ".weight"], l[n + ".bias"])
            h = ln(x, l, "self_attn_layer_norm")
            q, k, v = (lin(h, f"self_attn.{n}_proj") for n in "qkv")
            d = D // s.heads
            q = q * d**-0.5
            if s.fault == "scale-on-key-too":
                k = k * d**-0.5
            if s.style == "batch-first":
                q, k, v = (
                    z.view(B, T, s.heads, d).transpose(1, 2).reshape(B * s.heads, T, d)
                    for z in (q, k, v)
                )
            else:
                q, k, v = (
                    z.contiguous().view(T, B * s.heads, d).transpose(0, 1) for z in (q, k, v)
                )
            w = torch.bmm(q, k.transpose(1, 2))
            w = w + torch.full((T, T), torch.finfo(w.dtype).min, dtype=w.dtype).triu(1)
            o = torch.bmm(w.softmax(-1), v)
            o = (
                o.view(B, s.heads, T, d).transpose(1, 2).reshape(B, T, D)
                if s.style == "batch-first"
                else o.transpose(0, 1).reshape(T, B, D)
            )
            x = (h if s.fault == "residual-after-norm" else x) + lin(o, "self_attn.out_proj")
            f = lin(ln(x, l, "final_layer_norm"), "fc1")
            x = x + lin(F.gelu(f) if s.fault == "gelu" else torch.relu(f), "fc2")
        if s.fault != "no-final-norm":
            x = F.layer_norm(x, (D,), *s.fin)
        x = x @ s.tok.T
        return x if s.style == "batch-first" else x.transpose(0, 1)


def port(model, fault="", style=""):
    return Opt(model, fault, style)
