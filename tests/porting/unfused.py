"""A port in the plain style: one linear module for each projection, rotation of halves, a mask that
is added, norms and softmax in float32.

Axes: B batch, T positions, H heads, G key/value heads, D head width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from porting.recipe import Recipe


class Scale(nn.Module):
    """RMS or layer norm, computed in float32."""

    def __init__(self, r: Recipe, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.g = nn.Parameter(weight.clone())
        self.b = None if bias is None else nn.Parameter(bias.clone())
        self.kind, self.add, self.eps = r.norm, r.norm_offset, eps
        if r.has("norm-offset"):
            self.add = 1.0 - self.add
        if r.has("norm-kind"):
            self.kind = "layer" if self.kind == "rms" else "rms"

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        if self.kind == "layer":
            y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        y = y * (self.add + self.g.float())
        if self.b is not None:
            y = y + self.b
        return y.to(x.dtype)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(weight.clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.clone())
    return made


def speeds(r: Recipe, layer: int) -> Tensor:
    """Radians per position."""
    width, base = r.rotary_width, r.bases[layer]
    if r.has("rotary-width", layer):
        width = r.width if width < r.width else width // 2
    if r.has("rotary-base", layer):
        base = 10000.0 if base != 10000.0 else 500000.0
    if r.has("rotary-base-odd", layer):
        base = base * 1.3
    if r.has("rotary-local-base", layer):
        base = r.bases[0]
    inv = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
    linear = r.linear[layer]
    if r.has("rotary-factor", layer):
        linear = linear * 2 if linear > 1 else 4.0
    if r.has("rotary-scaling", layer):
        return inv
    if r.llama3 is not None:
        return llama3(inv, r.llama3)
    return inv / linear


def llama3(inv: Tensor, rope: dict[str, float]) -> Tensor:
    old = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    wave = 2 * math.pi / inv
    smooth = ((old / wave - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv / rope["factor"] + smooth * inv


def turn(x: Tensor, cos: Tensor, sin: Tensor, pairs: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    a, b = (part[..., ::2], part[..., 1::2]) if pairs else part.chunk(2, -1)
    c, d = a * cos - b * sin, b * cos + a * sin
    out = torch.stack([c, d], -1).flatten(-2) if pairs else torch.cat([c, d], -1)
    return torch.cat([out, rest], -1)


class Attend(nn.Module):
    """Attention with repeated keys and values."""

    def __init__(self, r: Recipe, n: int) -> None:
        super().__init__()
        w = r.layers[n]
        self.r, self.n = r, n
        self.to_q, self.to_k, self.to_v = (linear(w[c], w.get(f"{c}_bias")) for c in "qkv")
        self.to_out = linear(w["o"], w.get("o_bias"))
        self.q_scale = self.k_scale = None
        if "qn" in w and not r.has("qk-norm", n):
            self.q_scale, self.k_scale = (Scale(r, w[c], None, r.eps) for c in ("qn", "kn"))

    def scores_scale(self) -> float:
        r, n = self.r, self.n
        if r.has("score-scale-none", n):
            return 1.0
        if r.has("score-scale", n):
            return (2 * r.width) ** -0.5 if r.scale == r.width**-0.5 else r.width**-0.5
        return r.scale

    def forward(self, x: Tensor) -> Tensor:
        r, n = self.r, self.n
        B, T, _ = x.shape
        q = self.to_q(x).view(B, T, r.heads, r.width).transpose(1, 2)
        k, v = (p(x).view(B, T, r.groups, r.width).transpose(1, 2) for p in (self.to_k, self.to_v))
        if r.has("qk-norm-late", n):
            q, k = self.turned(q, k)
        if self.q_scale is not None and self.k_scale is not None:
            q, k = self.q_scale(q), self.k_scale(k)
        if r.rotary_width and not r.has("qk-norm-late", n):
            q, k = self.turned(q, k)
        times = r.heads // r.groups
        if r.has("head-groups", n):
            k, v = (t.repeat(1, times, 1, 1) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(times, 1) for t in (k, v))
        s = q @ k.transpose(-1, -2) * self.scores_scale()
        if r.cap and not r.has("score-cap", n):
            s = torch.tanh(s / r.cap) * r.cap
        s = s + self.mask(T)
        y = F.softmax(s.float(), -1).to(x.dtype) @ v
        if r.has("heads-unmoved", n):
            return self.to_out(y.reshape(B, T, -1))
        return self.to_out(y.transpose(1, 2).reshape(B, T, -1))

    def turned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        r, n = self.r, self.n
        at = torch.arange(q.shape[2])[:, None].float()
        if r.has("rotary-direction", n):
            at = -at
        angles = at * speeds(r, n)
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        pairs = r.has("rotary-pairing", n)
        q = turn(q, cos, sin, pairs)
        if r.has("rotary-key-offset", n):
            angles = (at + 1) * speeds(r, n)
            cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        return q, k if r.has("rotary-key", n) else turn(k, cos, sin, pairs)

    def mask(self, T: int) -> Tensor:
        r, n = self.r, self.n
        window = r.windows[n]
        if r.has("window-layers", n):
            window = r.windows[(n + 1) % len(r.windows)]
        if r.has("window-ignored", n):
            window = None
        behind = torch.arange(T)[:, None] - torch.arange(T)[None]
        seen = behind >= (-1 if r.has("mask-ahead", n) else 0)
        if r.has("causal", n):
            seen = torch.ones_like(seen)
        if window is not None:
            seen &= behind < window + int(r.has("window-off", n))
        return torch.zeros(T, T).masked_fill(~seen, -torch.inf)


ACTS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def act(r: Recipe, n: int) -> str:
    if r.has("activation-exact", n):
        return "gelu" if r.activation == "gelu_tanh" else "gelu_tanh"
    if r.has("activation", n):
        return "silu" if r.activation == "gelu_tanh" else "relu"
    return r.activation


class Feed(nn.Module):
    """The feed-forward block, gated or plain."""

    def __init__(self, r: Recipe, n: int, w: dict[str, Tensor]) -> None:
        super().__init__()
        self.r, self.n = r, n
        self.inner = linear(w["up"], w.get("up_bias"))
        self.gated = linear(w["gate"], None) if "gate" in w else None
        self.back = linear(w["down"], w.get("down_bias"))

    def forward(self, x: Tensor) -> Tensor:
        f = ACTS[act(self.r, self.n)]
        if self.gated is None:
            return self.back(f(self.inner(x)))
        if self.r.has("gate-up", self.n):
            return self.back(self.gated(x) * f(self.inner(x)))
        return self.back(f(self.gated(x)) * self.inner(x))


class Mixture(nn.Module):
    """Routed blocks, token by token."""

    def __init__(self, r: Recipe, n: int) -> None:
        super().__init__()
        w = r.layers[n]
        self.r, self.n = r, n
        self.pick = linear(w["router"], None)
        self.blocks = nn.ModuleList(
            Feed(r, n, {"gate": w["gates"][e], "up": w["ups"][e], "down": w["downs"][e]})
            for e in range(r.experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        r, n = self.r, self.n
        count = r.chosen + (-1 if r.has("router-count", n) else 0)
        logits = self.pick(x)
        if r.has("router-order", n):
            share, chosen = F.softmax(logits.float(), -1).topk(count, -1)
        else:
            share, chosen = logits.float().topk(count, -1)
            share = torch.sigmoid(share) if r.has("router-sigmoid", n) else F.softmax(share, -1)
        share = share.to(x.dtype)
        y = torch.zeros_like(x)
        for number, block in enumerate(self.blocks):
            rows = (chosen == number).any(-1)
            if rows.any():
                weight = torch.where(chosen == number, share, 0).sum(-1)[rows]
                y[rows] += block(x[rows]) * weight[:, None]
        return y


class Layer(nn.Module):
    """One layer."""

    def __init__(self, r: Recipe, n: int) -> None:
        super().__init__()
        w = r.layers[n]
        self.r, self.n = r, n
        eps = r.eps if not r.has("norm-eps", n) else (1e-3 if r.eps != 1e-3 else 1e-5)
        for name in ("n1", "n2", "pa", "pm"):
            made = Scale(r, w[name], w.get(f"{name}_bias"), eps) if name in w else None
            setattr(self, name, made)
        self.attend = Attend(r, n)
        self.feed = Mixture(r, n) if "router" in w else Feed(r, n, w)

    def forward(self, x: Tensor) -> Tensor:
        r, n = self.r, self.n
        h = x if r.has("norm-missing", n) else self.n1(x)
        a = self.attend(h)
        if self.pa is not None and not r.has("post-norm-missing", n):
            a = self.pa(a)
        if r.parallel != r.has("parallel", n):
            second = h if self.n2 is None else self.n2(x)
            return x + a + self.feed(second)
        y = a if r.has("residual-missing", n) else (h if r.has("residual", n) else x) + a
        m = self.feed(y if r.has("norm2-missing", n) else (self.n2 or self.n1)(y))
        if self.pm is not None:
            m = self.pm(m)
        return (x if r.has("residual-first", n) else y) + m


class UnfusedPort(nn.Module):
    """The whole port."""

    def __init__(self, r: Recipe) -> None:
        super().__init__()
        self.r = r
        self.words = nn.Embedding.from_pretrained(r.outer["table"].clone(), freeze=False)
        positions = r.outer.get("positions")
        self.places = (
            None
            if positions is None
            else nn.Embedding.from_pretrained(positions.clone(), freeze=False)
        )
        self.stack = nn.ModuleList(Layer(r, n) for n in range(len(r.layers)))
        self.last = Scale(r, r.outer["norm"], r.outer.get("norm_bias"), r.eps)
        head = r.outer["head"]
        if r.has("head-untied"):
            head = torch.randn(head.shape, generator=torch.Generator().manual_seed(5)) / 7
        if r.has("head-tied"):
            head = r.outer["table"]
        self.out = linear(head, r.outer.get("head_bias"))

    def forward(self, ids: Tensor) -> Tensor:
        r = self.r
        x = self.words(ids)
        if not r.has("embedding-scale"):
            x = x * r.embed_scale
        elif r.embed_scale == 1.0:
            x = x * r.outer["table"].shape[1] ** 0.5
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1]) + int(r.has("position-offset")))
        for layer in self.stack:
            x = layer(x)
        if not r.has("final-norm-missing"):
            x = self.last(x)
        y = self.out(x)
        if r.has("logit-scale"):
            y = y / 4
        if r.logit_cap and not r.has("logit-cap"):
            y = torch.tanh(y / r.logit_cap) * r.logit_cap
        return y
