"""GLM: weights fused by a converter and read from a file, attention through bmm."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import tempfile

import torch
from safetensors.torch import load_file, save_file
from torch import nn

FAULTS = (
    "gate-up-swapped",
    "rope-halves",
    "scale",
    "no-k-bias",
    "residual-after-norm",
    "norm-missing",
)


def convert(model, path):
    """Write the weights with queries, keys and values fused."""
    s, out = model.state_dict(), {}
    out["wte"], out["head"], out["ln_f"] = (
        s["model.embed_tokens.weight"],
        s["lm_head.weight"],
        s["model.norm.weight"],
    )
    for i in range(model.config.num_hidden_layers):
        p = f"model.layers.{i}."
        out[f"h{i}.qkv.w"] = torch.cat([s[f"{p}self_attn.{x}_proj.weight"] for x in "qkv"])
        out[f"h{i}.qkv.b"] = torch.cat([s[f"{p}self_attn.{x}_proj.bias"] for x in "qkv"])
        out[f"h{i}.o.w"] = s[p + "self_attn.o_proj.weight"]
        out[f"h{i}.gu.w"], out[f"h{i}.d.w"] = (
            s[p + "mlp.gate_up_proj.weight"],
            s[p + "mlp.down_proj.weight"],
        )
        out[f"h{i}.n1"], out[f"h{i}.n2"] = (
            s[p + "input_layernorm.weight"],
            s[p + "post_attention_layernorm.weight"],
        )
    save_file({k: v.contiguous().clone() for k, v in out.items()}, path)


class Norm(nn.Module):
    def __init__(self, w, eps):
        super().__init__()
        self.w, self.eps = nn.Parameter(w), eps

    def forward(self, x):
        return nn.functional.rms_norm(x, x.shape[-1:], self.w, self.eps)


class Layer(nn.Module):
    def __init__(self, t, i, c, fault):
        super().__init__()
        g = lambda k: nn.Parameter(t[f"h{i}.{k}"])  # noqa: E731
        self.qkv_w, self.qkv_b, self.o_w, self.gu_w, self.d_w = (
            g("qkv.w"),
            g("qkv.b"),
            g("o.w"),
            g("gu.w"),
            g("d.w"),
        )
        self.n1, self.n2 = Norm(t[f"h{i}.n1"], c.rms_norm_eps), Norm(t[f"h{i}.n2"], c.rms_norm_eps)
        self.c, self.fault, self.i = c, fault, i
        if fault == "no-k-bias":
            H, G, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
            with torch.no_grad():
                self.qkv_b[H * d : (H + G) * d] = 0

    def rope(self, x):
        d = x.shape[-1] // 2
        pos = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
        ang = pos[:, None] / self.c.rope_parameters["rope_theta"] ** (
            torch.arange(0, d, 2, device=x.device) / d
        )
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        y, rest = x[..., :d], x[..., d:]
        if self.fault == "rope-halves":
            y = y.unflatten(-1, (2, -1)).transpose(-1, -2)
        else:
            y = y.unflatten(-1, (-1, 2))
        y = torch.stack((y[..., 0] * cos - y[..., 1] * sin, y[..., 1] * cos + y[..., 0] * sin), -1)
        if self.fault == "rope-halves":
            y = y.transpose(-1, -2)
        return torch.cat((y.flatten(-2), rest), -1)

    def forward(self, x):
        c = self.c
        h = self.n1(x)
        qkv = torch.addmm(self.qkv_b, h.flatten(0, 1), self.qkv_w.t()).unflatten(0, h.shape[:2])
        qkv = qkv.unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        H, G = c.num_attention_heads, c.num_key_value_heads
        q, k, v = qkv.split([H, G, G], 1)
        q, k = self.rope(q), self.rope(k)
        k, v = (y.unsqueeze(2).expand(-1, -1, H // G, -1, -1).flatten(1, 2) for y in (k, v))
        scale = (c.head_dim // 2) ** -0.5 if self.fault == "scale" else c.head_dim**-0.5
        att = (q * scale) @ k.transpose(-1, -2)
        att = att.masked_fill(~torch.ones_like(att[0, 0], dtype=torch.bool).tril(), float("-inf"))
        y = (att.softmax(-1, dtype=torch.float32).to(v.dtype) @ v).transpose(1, 2).flatten(2)
        x = (h if self.fault == "residual-after-norm" else x) + y @ self.o_w.t()
        z = (x if self.fault == "norm-missing" and self.i == 1 else self.n2(x)) @ self.gu_w.t()
        gate, up = z.chunk(2, -1)
        if self.fault == "gate-up-swapped":
            gate, up = up, gate
        return x + (gate * gate.sigmoid() * up) @ self.d_w.t()


class Glm(nn.Module):
    def __init__(self, t, c, fault):
        super().__init__()
        self.wte, self.head = nn.Parameter(t["wte"]), nn.Parameter(t["head"])
        self.h = nn.Sequential(*(Layer(t, i, c, fault) for i in range(c.num_hidden_layers)))
        self.ln_f = Norm(t["ln_f"], c.rms_norm_eps)

    def forward(self, ids):
        return self.ln_f(self.h(self.wte[ids])) @ self.head.t()


def port(model, fault=""):
    """The port, its weights read from a converted file."""
    with tempfile.TemporaryDirectory() as folder:
        convert(model, folder + "/w.safetensors")
        return Glm(load_file(folder + "/w.safetensors"), model.config, fault).eval()
