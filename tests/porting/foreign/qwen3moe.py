"""Qwen3 MoE: small modules with other names, all experts computed for every token."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

FAULTS = (
    "router-not-normalised",
    "experts-reversed",
    "norm-after-rope",
    "no-q-norm",
    "one-plus-norm",
    "silu-to-gelu",
)


class RMS(nn.Module):
    def __init__(self, d, eps, plus=0.0):
        super().__init__()
        self.gain, self.eps, self.plus = nn.Parameter(torch.ones(d)), eps, plus

    def forward(self, x):
        return (
            F.normalize(x, dim=-1, eps=0) * x.shape[-1] ** 0.5 * (self.plus + self.gain)
            if self.eps == 0
            else (
                (x.float() * (x.float().square().mean(-1, True) + self.eps) ** -0.5).type_as(x)
                * (self.plus + self.gain)
            )
        )


class Rope(nn.Module):
    def __init__(self, d, base):
        super().__init__()
        ang = torch.outer(torch.arange(256.0), base ** (-torch.arange(0, d, 2) / d))
        self.register_buffer("cos", torch.cat((ang, ang), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((ang, ang), -1).sin(), persistent=False)

    def forward(self, x):
        t, d = x.shape[-2], x.shape[-1]
        sign = torch.ones(d, dtype=x.dtype, device=x.device)
        sign[: d // 2] = -1
        return x * self.cos[:t].to(x.dtype) + x.roll(d // 2, -1) * sign * self.sin[:t].to(x.dtype)


class Mixer(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        self.c, self.fault, d, hd = c, fault, c.hidden_size, c.head_dim
        self.to_q = nn.Linear(d, c.num_attention_heads * hd, bias=False)
        self.to_kv = nn.Linear(d, 2 * c.num_key_value_heads * hd, bias=False)
        self.out = nn.Linear(c.num_attention_heads * hd, d, bias=False)
        self.qn, self.kn = RMS(hd, c.rms_norm_eps), RMS(hd, c.rms_norm_eps)
        self.rope = Rope(hd, c.rope_parameters["rope_theta"])

    def forward(self, x):
        hd = self.c.head_dim
        q = self.to_q(x).unflatten(-1, (-1, hd)).transpose(1, 2)
        k, v = self.to_kv(x).unflatten(-1, (2, -1, hd)).permute(2, 0, 3, 1, 4)
        if self.fault == "norm-after-rope":
            q, k = self.qn(self.rope(q)), self.kn(self.rope(k))
        elif self.fault == "no-q-norm":
            q, k = self.rope(q), self.rope(self.kn(k))
        else:
            q, k = self.rope(self.qn(q)), self.rope(self.kn(k))
        n = q.shape[1] // k.shape[1]
        y = F.scaled_dot_product_attention(
            q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), is_causal=True
        )
        return self.out(y.transpose(1, 2).flatten(-2))


class Sparse(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        self.k, self.fault = c.num_experts_per_tok, fault
        e, d, f = c.num_experts, c.hidden_size, c.moe_intermediate_size
        self.gate = nn.Linear(d, e, bias=False)
        self.up_gate, self.down = (
            nn.Parameter(torch.empty(e, 2 * f, d)),
            nn.Parameter(torch.empty(e, d, f)),
        )

    def forward(self, x):
        p = self.gate(x).float().softmax(-1)
        w, i = p.topk(self.k, -1)
        if self.fault != "router-not-normalised":
            w = w / w.sum(-1, keepdim=True)
        full = torch.zeros_like(p).scatter(-1, i, w).to(x.dtype)
        if self.fault == "experts-reversed":
            full = full.flip(-1)
        a, b = torch.einsum("btd,efd->btef", x, self.up_gate).chunk(2, -1)
        act = F.gelu(a) if self.fault == "silu-to-gelu" else F.silu(a)
        return torch.einsum("btef,edf,bte->btd", act * b, self.down, full)


class Qwen(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        plus = 1.0 if fault == "one-plus-norm" else 0.0
        self.e = nn.Embedding(c.vocab_size, c.hidden_size)
        n = lambda: RMS(c.hidden_size, c.rms_norm_eps, plus)  # noqa: E731
        self.l = nn.ModuleList(
            nn.ModuleDict({"a": n(), "m": Mixer(c, fault), "b": n(), "s": Sparse(c, fault)})
            for _ in range(c.num_hidden_layers)
        )
        self.n, self.o = n(), nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, ids):
        x = self.e(ids)
        for l in self.l:
            x = x + l["m"](l["a"](x))
            x = x + l["s"](l["b"](x))
        return self.o(self.n(x))


def port(model, fault=""):
    """The port as modules of other names."""
    c, s = model.config, model.state_dict()
    made, new = Qwen(c, fault), {}
    new["e.weight"], new["o.weight"], new["n.gain"] = (
        s[k + ".weight"] for k in ("model.embed_tokens", "lm_head", "model.norm")
    )
    for i in range(c.num_hidden_layers):
        a, m, p = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp.", f"l.{i}."
        new[p + "m.to_q.weight"], new[p + "m.out.weight"] = (
            s[a + "q_proj.weight"],
            s[a + "o_proj.weight"],
        )
        new[p + "m.to_kv.weight"] = torch.cat((s[a + "k_proj.weight"], s[a + "v_proj.weight"]))
        new[p + "m.qn.gain"], new[p + "m.kn.gain"] = s[a + "q_norm.weight"], s[a + "k_norm.weight"]
        new[p + "s.gate.weight"], new[p + "s.up_gate"] = (
            s[m + "gate.weight"],
            s[m + "experts.gate_up_proj"],
        )
        new[p + "s.down"] = s[m + "experts.down_proj"]
        new[p + "a.gain"] = s[f"model.layers.{i}.input_layernorm.weight"]
        new[p + "b.gain"] = s[f"model.layers.{i}.post_attention_layernorm.weight"]
    missing = made.load_state_dict({k: v.clone() for k, v in new.items()}, strict=False)
    assert not missing.unexpected_keys and not missing.missing_keys
    return made.eval()
