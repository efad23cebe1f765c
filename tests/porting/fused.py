"""A port in the fused style: one projection for queries, keys and values, one for gate and up,
complex numbers for the rotation (rows permuted to fit), einsum over groups, scaled queries, a
table of rotations in complex64, weights of norms with the offset folded in.

Axes: b batch, t positions, s keys, g key/value heads, r query heads of each, d head width,
e experts, c channels, i inner channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from porting.mistakes import _rows
from porting.recipe import Recipe
from porting.unfused import ACTS, act, speeds


def _norm(r: Recipe, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The weight with its offset in it."""
    offset = 1.0 - r.norm_offset if r.has("norm-offset") else r.norm_offset
    return weight + offset, bias


def normalise(r: Recipe, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    kind = r.norm
    if r.has("norm-kind"):
        kind = "layer" if kind == "rms" else "rms"
    if kind == "layer":
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
    y = F.rms_norm(x, (x.shape[-1],), None, eps) * weight
    return y if bias is None else y + bias


class FusedBlock(nn.Module):
    """One layer, all weights its own parameters."""

    def __init__(self, r: Recipe, n: int, length: int) -> None:
        super().__init__()
        self.r, self.n = r, n
        w = r.layers[n]
        self.eps = r.eps if not r.has("norm-eps", n) else (1e-3 if r.eps != 1e-3 else 1e-5)
        for name in ("n1", "n2", "pa", "pm", "qn", "kn"):
            weight, bias = _norm(r, w[name], w.get(f"{name}_bias")) if name in w else (None, None)
            if name in ("qn", "kn") and weight is not None and r.rotary_width:
                weight = _pairs(weight, 1, r)
            setattr(self, name, None if weight is None else nn.Parameter(weight))
            setattr(self, f"{name}_bias", None if bias is None else nn.Parameter(bias))
        q, k = w["q"], w["k"]
        qb, kb = w.get("q_bias"), w.get("k_bias")
        if r.rotary_width:
            q, k = _pairs(q, r.heads, r), _pairs(k, r.groups, r)
            qb = None if qb is None else _pairs(qb, r.heads, r)
            kb = None if kb is None else _pairs(kb, r.groups, r)
        self.qkv = nn.Parameter(torch.cat([q, k, w["v"]]))
        biases = [b for b in (qb, kb, w.get("v_bias")) if b is not None]
        self.qkv_bias = nn.Parameter(torch.cat(biases)) if biases else None
        self.proj = nn.Parameter(w["o"].clone())
        self.proj_bias = nn.Parameter(w["o_bias"].clone()) if "o_bias" in w else None
        self._feed(w)
        if r.rotary_width:
            angles = torch.outer(torch.arange(length).float(), speeds(r, n))
            if r.has("rotary-direction", n):
                angles = -angles
            self.cis = torch.polar(torch.ones_like(angles), angles)  # no buffer, as Meta has it

    def _feed(self, w: dict[str, Tensor]) -> None:
        if "router" in w:
            self.gate = nn.Parameter(w["router"].clone())
            self.w13 = nn.Parameter(torch.cat([w["gates"], w["ups"]], 1))
            self.w2 = nn.Parameter(w["downs"].clone())
            return
        self.w13 = nn.Parameter(torch.cat([w["gate"], w["up"]]) if "gate" in w else w["up"].clone())
        self.w2 = nn.Parameter(w["down"].clone())
        for name in ("up", "down"):
            bias = w.get(f"{name}_bias")
            setattr(self, f"{name}_bias", None if bias is None else nn.Parameter(bias.clone()))

    def normed(self, name: str, x: Tensor) -> Tensor:
        weight = getattr(self, name)
        if weight is None:
            return x
        return normalise(self.r, x, weight, getattr(self, f"{name}_bias"), self.eps)

    def rotated(self, x: Tensor, ahead: int = 0) -> Tensor:
        """x (b, t, ..., d) rotated in pairs of neighbours, or of halves where that is wrong."""
        cis = self.cis[ahead : ahead + x.shape[1]]
        width = 2 * cis.shape[-1]
        part, rest = x[..., :width], x[..., width:]
        shape = (1, x.shape[1]) + (1,) * (x.ndim - 3) + (width // 2,)
        pairs = part.float().unflatten(-1, (-1, 2))
        if self.r.has("rotary-pairing", self.n):
            pairs = part.float().unflatten(-1, (2, -1)).transpose(-1, -2)
        turned = torch.view_as_complex(pairs.contiguous()) * cis.view(shape)
        real = torch.view_as_real(turned)
        if self.r.has("rotary-pairing", self.n):
            real = real.transpose(-1, -2)
        return torch.cat([real.flatten(-2).type_as(x), rest], -1)

    def attend(self, x: Tensor) -> Tensor:
        r, n = self.r, self.n
        b, t, _ = x.shape
        each = r.heads // r.groups
        flat = F.linear(x, self.qkv, self.qkv_bias)
        sizes = [r.heads * r.width, r.groups * r.width, r.groups * r.width]
        q, k, v = flat.split(sizes, -1)
        if r.has("head-groups", n):
            q = q.view(b, t, each, r.groups, r.width).transpose(2, 3)
        else:
            q = q.view(b, t, r.groups, each, r.width)
        k, v = (z.view(b, t, r.groups, r.width) for z in (k, v))
        late = r.has("qk-norm-late", n)
        if late:
            q, k = self.rotated(q), self.rotated(k)
        if not r.has("qk-norm", n):
            q, k = self.normed("qn", q), self.normed("kn", k)
        if r.rotary_width and not late:
            q = self.rotated(q)
            if not r.has("rotary-key", n):
                k = self.rotated(k, int(r.has("rotary-key-offset", n)))
        scores = torch.einsum("btgrd,bsgd->bgrts", q * self.score_scale(), k)
        if r.cap and not r.has("score-cap", n):
            scores = r.cap * torch.tanh(scores / r.cap)
        scores = scores.masked_fill(~self.seen(t), torch.finfo(scores.dtype).min)
        share = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
        if r.has("heads-unmoved", n):
            y = torch.einsum("bgrts,bsgd->bgrtd", share, v).reshape(b, t, -1)
        elif r.has("head-groups", n):
            y = torch.einsum("bgrts,bsgd->btrgd", share, v).reshape(b, t, -1)
        else:
            y = torch.einsum("bgrts,bsgd->btgrd", share, v).reshape(b, t, -1)
        return F.linear(y, self.proj, self.proj_bias)

    def score_scale(self) -> float:
        r, n = self.r, self.n
        if r.has("score-scale", n):
            return (2 * r.width) ** -0.5 if r.scale == r.width**-0.5 else r.width**-0.5
        return 1.0 if r.has("score-scale-none", n) else r.scale

    def seen(self, t: int) -> Tensor:
        r, n = self.r, self.n
        window = r.windows[n]
        if r.has("window-layers", n):
            window = r.windows[(n + 1) % len(r.windows)]
        if r.has("window-ignored", n):
            window = None
        every = torch.ones(t, t, dtype=torch.bool)
        allowed = every.tril(1 if r.has("mask-ahead", n) else 0)
        if r.has("causal", n):
            allowed = every
        if window is None:
            return allowed
        return allowed & every.triu(1 - window - int(r.has("window-off", n)))

    def feed(self, x: Tensor) -> Tensor:
        r, n = self.r, self.n
        f = ACTS[act(r, n)]
        if r.experts:
            return self.mixture(x, f)
        up_bias, down_bias = self.up_bias, self.down_bias
        if "gate" not in r.layers[n]:
            return F.linear(f(F.linear(x, self.w13, up_bias)), self.w2, down_bias)
        gate, up = F.linear(x, self.w13).chunk(2, -1)
        if r.has("gate-up", n):
            gate, up = up, gate
        return F.linear(f(gate) * up, self.w2)

    def mixture(self, x: Tensor, f: Any) -> Tensor:
        r, n = self.r, self.n
        count = r.chosen - int(r.has("router-count", n))
        logits = x @ self.gate.T
        share = torch.zeros_like(logits)
        top = logits.topk(count, -1)
        if r.has("router-order", n):
            share.scatter_(-1, top.indices, logits.softmax(-1).gather(-1, top.indices))
        elif r.has("router-sigmoid", n):
            share.scatter_(-1, top.indices, top.values.sigmoid())
        else:
            share.scatter_(-1, top.indices, top.values.softmax(-1))
        gate, up = torch.einsum("btc,eic->btei", x, self.w13).chunk(2, -1)
        inner = f(gate) * up
        return torch.einsum("btei,eci,bte->btc", inner, self.w2, share)

    def forward(self, x: Tensor) -> Tensor:
        r, n = self.r, self.n
        h = x if r.has("norm-missing", n) else self.normed("n1", x)
        a = self.attend(h)
        if not r.has("post-norm-missing", n):
            a = self.normed("pa", a)
        if r.parallel != r.has("parallel", n):
            return x + a + self.feed(h if self.n2 is None else self.normed("n2", x))
        y = a if r.has("residual-missing", n) else a + (h if r.has("residual", n) else x)
        second = "n1" if self.n2 is None else "n2"
        m = self.normed("pm", self.feed(y if r.has("norm2-missing", n) else self.normed(second, y)))
        return m + (x if r.has("residual-first", n) else y)


def _pairs(weight: Tensor, heads: int, r: Recipe) -> Tensor:
    """Rows so that neighbours rotate together: the rotated channels of each head only."""
    width, whole = r.rotary_width, weight.view(heads, r.width, *weight.shape[1:])
    turned = _rows(whole[:, :width].reshape(heads * width, *weight.shape[1:]), heads, False)
    turned = turned.view(heads, width, *weight.shape[1:])
    return torch.cat([turned, whole[:, width:]], 1).reshape(weight.shape)


class FusedPort(nn.Module):
    """The whole port; the embedding's scale is in its table."""

    def __init__(self, r: Recipe, length: int = 160) -> None:
        super().__init__()
        self.r = r
        scale = r.embed_scale
        if r.has("embedding-scale"):
            scale = 1.0 if scale != 1.0 else r.outer["table"].shape[1] ** 0.5
        self.table = nn.Parameter(r.outer["table"] * scale)
        places = r.outer.get("positions")
        self.places = None if places is None else nn.Parameter(places.clone())
        self.blocks = nn.ModuleList(FusedBlock(r, n, length) for n in range(len(r.layers)))
        weight, bias = _norm(r, r.outer["norm"], r.outer.get("norm_bias"))
        self.ln = nn.Parameter(weight)
        self.ln_bias = None if bias is None else nn.Parameter(bias.clone())
        head = r.outer["head"]
        if r.has("head-untied"):
            head = torch.randn(head.shape, generator=torch.Generator().manual_seed(5)) / 7
        if r.has("head-tied"):
            head = r.outer["table"]
        self.head = nn.Parameter(head.clone())
        bias = r.outer.get("head_bias")
        self.head_bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, ids: Tensor) -> Tensor:
        r = self.r
        x = F.embedding(ids, self.table)
        if self.places is not None:
            first = int(r.has("position-offset"))
            x = x + self.places[first : first + ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        if not r.has("final-norm-missing"):
            x = normalise(r, x, self.ln, self.ln_bias, r.eps)
        y = F.linear(x, self.head, self.head_bias)
        if r.has("logit-scale"):
            y = y / 4
        return (
            r.logit_cap * torch.tanh(y / r.logit_cap)
            if r.logit_cap and not r.has("logit-cap")
            else y
        )
