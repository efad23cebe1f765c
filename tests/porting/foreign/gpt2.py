"""GPT-2 as in minimal code: a nested dict of numpy-like arrays, kernels (in, out)."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

import math

import torch

FAULTS = (
    "gelu-exact",
    "positions-from-one",
    "no-final-norm",
    "no-scale",
    "proj-transposed",
    "residual-of-norm",
    "mask-off-by-one",
)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x, g, b, eps=1e-5):
    m = x.mean(-1, keepdim=True)
    v = x.var(-1, keepdim=True, unbiased=False)
    return g * (x - m) / torch.sqrt(v + eps) + b


class Bare:
    """A callable object, no module."""

    def __init__(self, params, heads, fault):
        self.params, self.heads, self.fault = params, heads, fault

    def mha(self, x, blk, layer):
        n = x.shape[1]
        qkv = x @ blk["c_attn.weight"] + blk["c_attn.bias"]
        q, k, v = [
            z.reshape(*z.shape[:2], self.heads, -1).swapaxes(1, 2)
            for z in qkv.split(x.shape[-1], -1)
        ]
        tri = torch.ones(n, n, device=x.device, dtype=x.dtype).tril(
            1 if self.fault == "mask-off-by-one" else 0
        )
        s = q @ k.swapaxes(-1, -2)
        if self.fault != "no-scale":
            s = s / math.sqrt(q.shape[-1])
        s = s * tri - 1e4 * (1 - tri)
        e = torch.exp(s - s.max(-1, keepdim=True).values)
        y = (e / e.sum(-1, keepdim=True)) @ v
        w = blk["c_proj.weight"]
        if self.fault == "proj-transposed" and layer == 0:
            w = w.T
        return y.swapaxes(1, 2).reshape(x.shape) @ w + blk["c_proj.bias"]

    def ffn(self, x, blk):
        h = x @ blk["c_fc.weight"] + blk["c_fc.bias"]
        h = torch.nn.functional.gelu(h) if self.fault == "gelu-exact" else gelu(h)
        return h @ blk["c_proj.weight"] + blk["c_proj.bias"]

    def __call__(self, ids):
        p = self.params
        first = 1 if self.fault == "positions-from-one" else 0
        x = p["wte"][ids] + p["wpe"][first : first + ids.shape[1]]
        for i, blk in enumerate(p["blocks"]):
            h = norm(x, *blk["ln_1"])
            x = (h if self.fault == "residual-of-norm" else x) + self.mha(h, blk["attn"], i)
            x = x + self.ffn(norm(x, *blk["ln_2"]), blk["mlp"])
        if self.fault != "no-final-norm":
            x = norm(x, *p["ln_f"])
        return x @ p["wte"].T


def port(model, fault=""):
    """The port as a callable object."""
    s = {k.removeprefix("transformer."): v.clone() for k, v in model.state_dict().items()}
    pair = lambda n: (s[n + ".weight"], s[n + ".bias"])  # noqa: E731
    blocks = []
    for i in range(model.config.n_layer):
        part = lambda n: {
            k.removeprefix(f"h.{i}.{n}."): v for k, v in s.items() if k.startswith(f"h.{i}.{n}.")
        }  # noqa: B023, E731
        blocks.append(
            {
                "ln_1": pair(f"h.{i}.ln_1"),
                "ln_2": pair(f"h.{i}.ln_2"),
                "attn": part("attn"),
                "mlp": part("mlp"),
            }
        )
    params = {
        "wte": s["wte.weight"],
        "wpe": s["wpe.weight"],
        "ln_f": pair("ln_f"),
        "blocks": blocks,
    }
    return Bare(params, model.config.n_head, fault)
