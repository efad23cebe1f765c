"""StableLM: rotary embedding as complex numbers, one norm a head, everything in one module."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

FAULTS = ("rope-all", "no-norm-bias", "no-qk-norm", "keys-one-ahead", "parallel", "rope-base")


def to_complex(x):
    a, b = x.double().chunk(2, -1)
    return torch.complex(a, b)


class StableLM(nn.Module):
    def __init__(self, model, fault):
        super().__init__()
        self.c, self.fault = model.config, fault
        self.p = nn.ParameterDict(
            {k.replace(".", "_"): nn.Parameter(v.clone()) for k, v in model.state_dict().items()}
        )

    def ln(self, x, name, weight=None):
        bias = self.p.get(name + "_bias") if name + "_bias" in self.p else None
        if self.fault == "no-norm-bias":
            bias = None
        return F.layer_norm(x, x.shape[-1:], self.p[name + "_weight"], bias, self.c.layer_norm_eps)

    def lin(self, x, name):
        b = self.p[name + "_bias"] if name + "_bias" in self.p else None
        return F.linear(x, self.p[name + "_weight"], b)

    def cis(self, n, d):
        theta = 100000.0 if self.fault == "rope-base" else self.c.rope_parameters["rope_theta"]
        speeds = theta ** -(torch.arange(0, d, 2).double() / d)
        return torch.polar(
            torch.ones(n, d // 2).double(), torch.outer(torch.arange(n).double(), speeds)
        )

    def rope(self, x, cis):
        d = cis.shape[-1] * 2
        y = to_complex(x[..., :d]) * cis
        return torch.cat((y.real.to(x.dtype), y.imag.to(x.dtype), x[..., d:]), -1)

    def attend(self, x, l):
        c = self.c
        B, T, D = x.shape
        q, k, v = (
            self.lin(x, f"{l}_self_attn_{s}_proj")
            .unflatten(-1, (-1, D // c.num_attention_heads))
            .transpose(1, 2)
            for s in "qkv"
        )
        if self.fault != "no-qk-norm":
            q = torch.stack(
                [
                    self.ln(q[:, h], f"{l}_self_attn_q_layernorm_norms_{h}")
                    for h in range(q.shape[1])
                ],
                1,
            )
            k = torch.stack(
                [
                    self.ln(k[:, h], f"{l}_self_attn_k_layernorm_norms_{h}")
                    for h in range(k.shape[1])
                ],
                1,
            )
        width = q.shape[-1] if self.fault == "rope-all" else q.shape[-1] // 2
        cis = self.cis(T + 1, width).to(x.device)
        q = self.rope(q, cis[:T])
        k = self.rope(k, cis[1:] if self.fault == "keys-one-ahead" else cis[:T])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.lin(y.transpose(1, 2).flatten(2), f"{l}_self_attn_o_proj")

    def mlp(self, x, l):
        return self.lin(
            F.silu(self.lin(x, f"{l}_mlp_gate_proj")) * self.lin(x, f"{l}_mlp_up_proj"),
            f"{l}_mlp_down_proj",
        )

    def forward(self, ids):
        x = F.embedding(ids, self.p["model_embed_tokens_weight"])
        for i in range(self.c.num_hidden_layers):
            l = f"model_layers_{i}"
            a = self.attend(self.ln(x, l + "_input_layernorm"), l)
            if self.fault == "parallel":
                x = x + a + self.mlp(self.ln(x, l + "_post_attention_layernorm"), l)
            else:
                x = x + a
                x = x + self.mlp(self.ln(x, l + "_post_attention_layernorm"), l)
        return self.lin(self.ln(x, "model_norm"), "lm_head")


def port(model, fault=""):
    """The port as one module."""
    return StableLM(model, fault).eval()
