"""Modules written by hand, as people write them: without a config, with a cache of plain tuples,
with losses of their own.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from healthy.kinds import kind

VOCAB, WIDTH, HEADS, LAYERS = 64, 32, 4, 3
HEAD = WIDTH // HEADS
CONTEXT = 128


def _causal(past: int, new: int) -> Tensor:
    """Queries behind `past` tokens read up to their own position, (T, S) booleans."""
    return torch.arange(past + new) <= torch.arange(past, past + new)[:, None]


class FusedBlock(nn.Module):
    """Attention with one projection, and a feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        length = x.shape[1]
        parts = self.c_attn(self.ln_1(x)).split(WIDTH, -1)
        q, k, v = (each.unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for each in parts)
        scores = (q @ k.mT / math.sqrt(HEAD)).masked_fill(~_causal(0, length), -math.inf)
        x = x + self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class Targets(nn.Module):
    """Returns logits and a loss over `targets`, of which -1 do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(FusedBlock() for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(logits, loss)."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        flat = logits.flatten(0, 1), targets.flatten()
        return logits, F.cross_entropy(*flat, ignore_index=-1)


def _turned(states: Tensor, positions: Tensor) -> Tensor:
    """Neighbouring channels rotated by their positions."""
    speed = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angle = (positions[:, None] * speed).to(states.dtype)
    left, right = states[..., ::2], states[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([left * cos - right * sin, left * sin + right * cos], -1).flatten(-2)


class TupleCache(nn.Module):
    """Layers that are dictionaries of modules, and a cache that is a tuple of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.norm = nn.Embedding(VOCAB, WIDTH), nn.RMSNorm(WIDTH)
        sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, 16), "v": (WIDTH, 16), "o": (WIDTH, WIDTH)}
        sizes |= {"up": (WIDTH, 64), "down": (64, WIDTH)}
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
                | {"n1": nn.RMSNorm(WIDTH), "n2": nn.RMSNorm(WIDTH)}
            )
            for _ in range(LAYERS)
        )
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> tuple[Any, ...]:
        """(logits,) or (logits, cache)."""
        x, new = self.tok(input_ids), []
        past = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        positions = torch.arange(past, past + x.shape[1])
        for number, layer in enumerate(self.layers):
            parts = (layer[name](layer["n1"](x)) for name in ("q", "k", "v"))  # type: ignore[index]
            q, k, v = (each.unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in parts)
            q, k = _turned(q, positions), _turned(k, positions)
            if past_key_values is not None:
                k, v = (
                    torch.cat(pair, 2) for pair in zip(past_key_values[number], (k, v), strict=True)
                )
            new.append((k, v))
            every = (each.repeat_interleave(2, 1) for each in (k, v))
            mask = _causal(past, x.shape[1])
            mixed = F.scaled_dot_product_attention(q, *every, attn_mask=mask)
            x = x + layer["o"](mixed.transpose(1, 2).flatten(2))  # type: ignore[index]
            x = x + layer["down"](F.silu(layer["up"](layer["n2"](x))))  # type: ignore[index]
        logits = self.output(self.norm(x))
        return (logits, tuple(new)) if use_cache else (logits,)


class GroupedBlock(nn.Module):
    """Grouped heads in equations; keys and values are kept as (B, S, G, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.to_q, self.to_kv = (
            nn.RMSNorm(WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.to_out, self.up, self.down = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 64),
            nn.Linear(64, WIDTH),
        )

    def forward(self, x: Tensor, cache: dict[str, Any] | None, start: int) -> Tensor:
        """One layer; `cache` is filled in place."""
        hidden = self.norm(x)
        q = _turned(self.to_q(hidden).unflatten(-1, (HEADS, HEAD)), _behind(start, x))
        k, v = self.to_kv(hidden).unflatten(-1, (2, 2, HEAD)).unbind(2)
        k = _turned(k, _behind(start, x))
        if cache is not None:
            if start:
                k, v = torch.cat([cache["k"], k], 1), torch.cat([cache["v"], v], 1)
            cache.update(k=k, v=v)
        scores = torch.einsum("btgrd,bsgd->bgrts", q.unflatten(2, (2, 2)), k) / math.sqrt(HEAD)
        weights = scores.masked_fill(~_causal(start, x.shape[1]), -math.inf).softmax(-1)
        mixed = torch.einsum("bgrts,bsgd->btgrd", weights, v)
        x = x + self.to_out(mixed.flatten(2))
        return x + self.down(F.silu(self.up(x)))


def _behind(start: int, x: Tensor) -> Tensor:
    """Positions of the new tokens as (T, 1), for tensors of (B, T, heads, D)."""
    return torch.arange(start, start + x.shape[1])[:, None]


class DictCache(nn.Module):
    """Layers in `decoder_stack`, a cache of dictionaries that counts under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=2)
        self.tok, self.norm = nn.Embedding(VOCAB, WIDTH), nn.RMSNorm(WIDTH)
        self.decoder_stack = nn.ModuleList(GroupedBlock() for _ in range(LAYERS))
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> tuple[Any, ...]:
        """(logits,) or (logits, cache)."""
        cache = past_key_values or ({"seen": 0} if use_cache else None)
        start, x = cache["seen"] if cache else 0, self.tok(input_ids)
        for number, layer in enumerate(self.decoder_stack):
            x = layer(x, None if cache is None else cache.setdefault(number, {}), start)
        if cache is not None:
            cache["seen"] += input_ids.shape[1]
        logits = self.output(self.norm(x))
        return (logits,) if cache is None else (logits, cache)


class RingLayer(nn.Module):
    """A window over a ring of slots, one projection for all three, a softmax that is written out,
    and an output projection in the same equation as the values.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Parameter(torch.randn(HEADS, HEAD, WIDTH) * HEAD**-0.5)

    def forward(self, x: Tensor, places: Tensor, ring: dict[Any, Any] | None) -> Tensor:
        """One layer; the ring is changed in place."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, HEAD)).unbind(2)
        at = places[0]
        if ring is not None and self.number in ring:
            keys, values, held = ring[self.number]
            k, v = torch.cat([keys, k], 1), torch.cat([values, v], 1)
            at = torch.cat([held, at])
        if ring is not None:
            kept = _slots(at)
            ring[self.number] = (k[:, kept], v[:, kept], at[kept])
        gap = places[0][:, None] - at[None]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(HEAD)
        scores = scores.masked_fill((gap < 0) | (gap >= RING), -math.inf)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = powers / powers.sum(-1, keepdim=True)
        return x + torch.einsum("bhqk,bkhd,hde->bqe", weights, v, self.out)


RING = 8


def _slots(at: Tensor) -> Tensor:
    """The newest tokens, each in the slot of its position in the ring."""
    newest = at.argsort()[-RING:]
    return newest[(at[newest] % RING).argsort()]


class RingCache(nn.Module):
    """Positions that restart separate nothing; no mask; `block_size` is that of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            model_type="ring", num_attention_heads=HEADS, sliding_window=RING, block_size=RING
        )
        self.word, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(map(RingLayer, range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        past_key_values: dict[Any, Any] | None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, dict[Any, Any] | None]:
        """Logits and the ring."""
        ring = {"seen": 0} if use_cache and past_key_values is None else past_key_values
        seen = 0 if ring is None else ring["seen"]
        places = torch.arange(seen, seen + input_ids.shape[1])[None]
        places = places if position_ids is None else position_ids
        x = self.word(input_ids) + self.position(places)
        for layer in self.layers:
            x = layer(x, torch.arange(seen, seen + input_ids.shape[1])[None], ring)
        if ring is not None:
            ring["seen"] += input_ids.shape[1]
        return self.head(x), ring


class OwnEncoder(nn.Module):
    """An encoder of no listed type, on torch's own attention, which the library calls masked."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="own", num_attention_heads=HEADS)
        self.word, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> MaskedLMOutput:
        """Logits, and the loss of labels that are not shifted."""
        x = self.word(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        hidden = None if attention_mask is None else attention_mask == 0
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        logits = self.head(x)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


def _seeded(model: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model().eval()


@kind(fast=True)
def loss_over_targets() -> nn.Module:
    return _seeded(Targets)


@kind("bfloat16")
def loss_over_targets_in_half() -> nn.Module:
    return _seeded(Targets)


@kind(fast=True)
def cache_of_tuples() -> nn.Module:
    return _seeded(TupleCache)


@kind("bfloat16")
def cache_of_tuples_in_half() -> nn.Module:
    return _seeded(TupleCache)


@kind(fast=True)
def grouped_heads_in_a_dictionary() -> nn.Module:
    return _seeded(DictCache)


@kind("bfloat16")
def grouped_heads_in_a_dictionary_in_half() -> nn.Module:
    return _seeded(DictCache)


# torch's own attention gives a row of nothing but padding no finite number
@kind(fast=True, known=("padding",))
def encoder_of_its_own() -> nn.Module:
    return _seeded(OwnEncoder)


@kind(fast=True)
def ring_of_slots() -> nn.Module:
    return _seeded(RingCache)
