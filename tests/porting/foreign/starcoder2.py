"""StarCoder 2: time first, (T, B, H, D), as Megatron has it; modules of another tree."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

FAULTS = ("window-plus-one", "no-window", "no-out-bias", "eps", "gelu-exact", "head-untied")


class CoreAttention(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, q, k, v):
        t, b, h, d = q.shape
        k = k.repeat_interleave(h // k.shape[2], dim=2)
        v = v.repeat_interleave(h // v.shape[2], dim=2)
        q = q.reshape(t, b * h, d).transpose(0, 1)
        k = k.reshape(t, b * h, d).permute(1, 2, 0)
        scores = torch.baddbmm(
            torch.zeros(1, dtype=q.dtype, device=q.device), q, k, beta=0, alpha=d**-0.5
        )
        i = torch.arange(t, device=q.device)
        gone = i[None, :] > i[:, None]
        if self.window:
            gone = gone | (i[:, None] - i[None, :] >= self.window)
        scores = scores.masked_fill(gone, -10000.0)
        ctx = torch.bmm(scores.softmax(-1), v.reshape(t, b * h, d).transpose(0, 1))
        return ctx.transpose(0, 1).reshape(t, b, h * d)


class ParallelBlock(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        d, self.h, self.g = c.hidden_size, c.num_attention_heads, c.num_key_value_heads
        self.hd, self.theta, self.fault = d // self.h, c.rope_parameters["rope_theta"], fault
        window = c.sliding_window + (fault == "window-plus-one")
        self.core = CoreAttention(None if fault == "no-window" else window)
        self.linear_qkv = nn.Linear(d, d + 2 * self.g * self.hd)
        self.linear_proj = nn.Linear(d, d)
        eps = 1e-6 if fault == "eps" else c.norm_epsilon
        self.norm_a, self.norm_b = nn.LayerNorm(d, eps), nn.LayerNorm(d, eps)
        self.fc1, self.fc2 = nn.Linear(d, c.intermediate_size), nn.Linear(c.intermediate_size, d)

    def turn(self, x):
        t, d = x.shape[0], self.hd
        f = 1.0 / (self.theta ** (torch.arange(0, d, 2, device=x.device).float() / d))
        emb = torch.outer(torch.arange(t, device=x.device).float(), f).repeat(1, 2)[:, None, None]
        flipped = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
        return x * emb.cos().to(x.dtype) + flipped * emb.sin().to(x.dtype)

    def forward(self, x):
        t, b, d = x.shape
        qkv = self.linear_qkv(self.norm_a(x))
        q, k, v = qkv.split([d, self.g * self.hd, self.g * self.hd], -1)
        q, k, v = (y.reshape(t, b, -1, self.hd) for y in (q, k, v))
        y = self.core(self.turn(q), self.turn(k), v)
        y = F.linear(
            y,
            self.linear_proj.weight,
            None if self.fault == "no-out-bias" else self.linear_proj.bias,
        )
        x = x + y
        mid = F.gelu(
            self.fc1(self.norm_b(x)), approximate="none" if self.fault == "gelu-exact" else "tanh"
        )
        return x + self.fc2(mid)


class Coder(nn.Module):
    def __init__(self, c, fault):
        super().__init__()
        self.fault = fault
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.decoder = nn.ModuleList([ParallelBlock(c, fault) for _ in range(c.num_hidden_layers)])
        self.final_norm = nn.LayerNorm(c.hidden_size, 1e-6 if fault == "eps" else c.norm_epsilon)
        if fault == "head-untied":
            self.output_layer = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, ids):
        x = self.word_embeddings(ids.T)
        for layer in self.decoder:
            x = layer(x)
        x = self.final_norm(x)
        w = self.output_layer.weight if self.fault == "head-untied" else self.word_embeddings.weight
        return torch.einsum("tbd,vd->btv", x, w)


def port(model, fault=""):
    """The port as a module that computes time first."""
    torch.manual_seed(3)
    made = Coder(model.config, fault)
    src = model.state_dict()
    with torch.no_grad():
        made.word_embeddings.weight.copy_(src["model.embed_tokens.weight"])
        for i, layer in enumerate(made.decoder):
            p = f"model.layers.{i}."
            for kind in ("weight", "bias"):
                fused = [src[f"{p}self_attn.{n}_proj.{kind}"] for n in "qkv"]
                getattr(layer.linear_qkv, kind).copy_(torch.cat(fused))
                getattr(layer.linear_proj, kind).copy_(src[f"{p}self_attn.o_proj.{kind}"])
                getattr(layer.norm_a, kind).copy_(src[f"{p}input_layernorm.{kind}"])
                getattr(layer.norm_b, kind).copy_(src[f"{p}post_attention_layernorm.{kind}"])
                getattr(layer.fc1, kind).copy_(src[f"{p}mlp.c_fc.{kind}"])
                getattr(layer.fc2, kind).copy_(src[f"{p}mlp.c_proj.{kind}"])
        made.final_norm.weight.copy_(src["model.norm.weight"])
        made.final_norm.bias.copy_(src["model.norm.bias"])
    return made.eval()
