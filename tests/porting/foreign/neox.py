"""GPT-NeoX: another module tree, fused queries, keys and values interleaved by head."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

FAULTS = (
    "rope-interleaved",
    "gelu-tanh",
    "sequential",
    "qkv-by-blocks",
    "rope-width",
    "no-qkv-bias",
)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, rot, fault):
        super().__init__()
        self.h, self.rot, self.fault = heads, rot, fault
        self.Wqkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def rope(self, x):
        r = x[..., : self.rot]
        n = x.shape[2]
        freqs = 10000.0 ** (-torch.arange(0, self.rot, 2, device=x.device).float() / self.rot)
        ang = torch.outer(torch.arange(n, device=x.device).float(), freqs)
        c, s = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        if self.fault == "rope-interleaved":
            a, b = r[..., ::2], r[..., 1::2]
            r = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
        else:
            a, b = r.chunk(2, -1)
            r = torch.cat((a * c - b * s, a * s + b * c), -1)
        return torch.cat((r, x[..., self.rot :]), -1)

    def forward(self, x):
        b, n, d = x.shape
        qkv = x @ self.Wqkv.weight.T if self.fault == "no-qkv-bias" else self.Wqkv(x)
        if self.fault == "qkv-by-blocks":
            q, k, v = (y.view(b, n, self.h, -1).transpose(1, 2) for y in qkv.chunk(3, -1))
        else:
            q, k, v = qkv.view(b, n, self.h, 3, -1).permute(3, 0, 2, 1, 4)
        q, k = self.rope(q), self.rope(k)
        w = q @ k.mT / math.sqrt(q.shape[-1])
        w = w + torch.full((n, n), -torch.inf, device=x.device, dtype=w.dtype).triu(1)
        y = w.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, inner, heads, rot, eps, fault):
        super().__init__()
        self.fault = fault
        self.ln1, self.ln2 = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.attn = SelfAttention(dim, heads, rot, fault)
        act = nn.GELU("tanh" if fault == "gelu-tanh" else "none")
        self.ff = nn.Sequential(nn.Linear(dim, inner), act, nn.Linear(inner, dim))

    def forward(self, x):
        if self.fault == "sequential":
            x = x + self.attn(self.ln1(x))
            return x + self.ff(self.ln2(x))
        return x + self.attn(self.ln1(x)) + self.ff(self.ln2(x))


class Pythia(nn.Module):
    def __init__(self, config, fault):
        super().__init__()
        dim, heads = config.hidden_size, config.num_attention_heads
        self.tok = nn.Embedding(config.vocab_size, dim)
        rot = int(dim // heads * 0.5)
        if fault == "rope-width":
            rot = dim // heads
        self.blocks = nn.ModuleList(
            Block(dim, config.intermediate_size, heads, rot, config.layer_norm_eps, fault)
            for _ in range(config.num_hidden_layers)
        )
        self.out_norm = nn.LayerNorm(dim, eps=config.layer_norm_eps)
        self.unembed = nn.Linear(dim, config.vocab_size, bias=False)

    def forward(self, ids):
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.out_norm(x))


NAMES = {
    "gpt_neox.embed_in": "tok",
    "gpt_neox.layers": "blocks",
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
    "attention.query_key_value": "attn.Wqkv",
    "attention.dense": "attn.proj",
    "mlp.dense_h_to_4h": "ff.0",
    "mlp.dense_4h_to_h": "ff.2",
    "gpt_neox.final_layer_norm": "out_norm",
    "embed_out": "unembed",
    "lm_head": "unembed",
}


def port(model, fault=""):
    """The port as a module of its own tree."""
    made = Pythia(model.config, fault)
    state = {}
    for name, value in model.state_dict().items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        state[name] = value.clone()
    made.load_state_dict(state)
    return made.eval()
