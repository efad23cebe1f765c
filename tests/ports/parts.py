"""What the hand-written ports share: a config, layers, a rotation, and seeded weights.

Axes: B batch, T queries, S keys, H heads, G key/value heads, D head width, W hidden width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

Layer = tuple[Tensor, Tensor]


class PortConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "port"

    def __init__(self, flaw: bool = False, **given: Any) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = 64, 32, 2
        self.num_attention_heads, self.num_key_value_heads, self.head_dim = 4, 2, 8
        self.max_position_embeddings, self.flaw = 256, flaw
        super().__init__(**given)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x_BHTD: Tensor, at_BT: Tensor) -> Tensor:
    half = x_BHTD.shape[-1] // 2
    speed = 1e4 ** (-torch.arange(half, dtype=x_BHTD.dtype) / half)
    angle = at_BT[:, None, :, None].to(x_BHTD.dtype) * speed
    a, b = x_BHTD[..., :half], x_BHTD[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def visible(mask_BS: Tensor | None, before: int, new: int, total: int) -> Tensor:
    """(B or 1, 1, T, S): causal, and no padding; slots of a buffer that hold nothing are hidden."""
    at_T = torch.arange(before, before + new)
    allowed = (torch.arange(total)[None] <= at_T[:, None])[None, None]
    if mask_BS is None:
        return allowed
    if mask_BS.ndim == 4:  # explicit pairs of queries and keys
        return mask_BS if mask_BS.dtype == torch.bool else mask_BS > -1.0
    empty = total - mask_BS.shape[1]
    return allowed & F.pad(mask_BS.bool(), (0, max(0, empty)))[:, None, None, :total]


class Attention(nn.Module):
    """Grouped heads with rotation; `weigh` turns scores and visible keys into weights."""

    def __init__(self, config: PortConfig, number: int) -> None:
        super().__init__()
        self.config, self.number = config, number
        self.h, self.g, self.d = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        width = config.hidden_size
        self.q_proj = nn.Linear(width, self.h * self.d, bias=False)
        self.k_proj = nn.Linear(width, self.g * self.d, bias=False)
        self.v_proj = nn.Linear(width, self.g * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, width, bias=False)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, length, _ = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        sizes = ((q, self.h), (k, self.g), (v, self.g))
        q, k, v = (x.view(rows, length, n, self.d).transpose(1, 2) for x, n in sizes)
        return q, k, v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.repeat_interleave(self.h // self.g, 1).transpose(2, 3) / math.sqrt(self.d)

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        weights = self.weigh(self.scores(q, k), seen)
        mixed = weights @ v.repeat_interleave(self.h // self.g, 1)
        rows, _, length, _ = q.shape
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out

    def forward(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        q, k, v = self.heads(x)
        q, k = rotate(q, at), rotate(k, at)
        before = 0
        if cache is not None:
            before = int(cache.get_seq_length(self.number))
            k, v = cache.update(k, v, self.number)
        return self.mix(q, k, v, visible(mask, before, q.shape[2], k.shape[2]))


class Block(nn.Module):
    def __init__(self, config: PortConfig, attention: nn.Module) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm_1, self.attn, self.norm_2 = Norm(width), attention, Norm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.attn(self.norm_1(x), *more)
        out: Tensor = x + self.down(F.silu(self.up(self.norm_2(x))))
        return out


class OwnCache:
    """Keys and values of every layer, as people write it; `flaw` breaks what a subclass says."""

    def __init__(self, layers: int, flaw: bool = False) -> None:
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.flaw = flaw

    def update(self, k: Tensor, v: Tensor, layer: int, *more: Any) -> Layer:
        old_k, old_v = self.keys[layer], self.values[layer]
        k = k if old_k is None else torch.cat([old_k, k], 2)
        v = v if old_v is None else torch.cat([old_v, v], 2)
        self.keys[layer], self.values[layer] = k, v
        return k, v

    def get_seq_length(self, layer: int = 0) -> int:
        held = self.keys[layer]
        return 0 if held is None else held.shape[2]

    def crop(self, tokens: int) -> None:
        for held in (self.keys, self.values):
            held[:] = [each if each is None else each[:, :, :tokens] for each in held]

    def reorder_cache(self, index: Tensor) -> None:
        for held in (self.keys, self.values):
            held[:] = [each if each is None else each.index_select(0, index) for each in held]


def seeded(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for name, each in model.named_parameters():
        if each.ndim < 2:
            nn.init.normal_(each, 1.0 if "norm" in name else 0.0, 0.1)
            continue
        table = any(part in name for part in ("wte", "wpe", "embed"))
        nn.init.normal_(each, std=1.0 if table else each.shape[-1] ** -0.5)
    return model.eval()
