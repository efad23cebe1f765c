"""Decoders written by hand on `PreTrainedModel`, each with the fault of a public report or without.

Axes: B batch, T tokens, H heads, G key/value heads, D head width, S keys.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ports.parts import Attention, Block, Layer, Norm, OwnCache, PortConfig, rotate, seeded, visible


class Plain(PreTrainedModel):  # type: ignore[misc]
    """A decoder without GenerationMixin, its embedding under the name that GPT-2 gave it."""

    config_class = PortConfig
    attention: type[Attention] = Attention
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    accepts_loss_kwargs = False

    def __init__(self, config: PortConfig) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = range(config.num_hidden_layers)
        self.h = nn.ModuleList(Block(config, self.attention(config, i)) for i in layers)
        self.ln_f = Norm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def flaw(self) -> bool:
        return bool(self.config.flaw)

    def _init_weights(self, module: nn.Module) -> None:
        pass

    def new_cache(self) -> Any:
        return DynamicCache()

    def _prepare_cache_for_generation(
        self, generation_config: Any, kwargs: Any, *more: Any
    ) -> None:
        if generation_config.use_cache is not False and kwargs.get("cache") is None:
            kwargs["cache"] = self.new_cache()

    def embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        return self.wte(input_ids) if inputs_embeds is None else inputs_embeds

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        for block in self.h:
            x = block(x, at, mask, cache)
        return x

    def positions(self, given: Tensor | None, x: Tensor, before: int) -> Tensor:
        at = torch.arange(before, before + x.shape[1])[None] if given is None else given
        return at.expand(x.shape[:2])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        **more: Any,
    ) -> Any:
        x = self.embedded(input_ids, inputs_embeds)
        if cache is None and use_cache is not False and not self.training:
            cache = self.new_cache()
        before = int(cache.get_seq_length()) if cache is not None else 0
        x = self.run(x, self.positions(position_ids, x, before), attention_mask, cache)
        logits, loss = self.lm_head(self.ln_f(x)), None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)


class Generating(Plain, GenerationMixin):
    """The same with generate()."""


class Sized(Plain):
    """Positions of a step start from zero (a port without GenerationMixin)."""

    def positions(self, given: Tensor | None, x: Tensor, before: int) -> Tensor:
        return super().positions(given, x, 0 if self.flaw and x.shape[1] == 1 else before)


class OwnCached(Plain):
    """A cache class of its own; the fault is in the subclass of the cache."""

    _supports_static_cache = False

    kind: type[OwnCache] = OwnCache

    def new_cache(self) -> Any:
        return self.kind(len(self.h), self.flaw)


class CountingCrop(OwnCache):
    """Rejected tokens stay, and the counter alone goes back."""

    kept = 0

    def get_seq_length(self, layer: int = 0) -> int:
        return self.kept

    def update(self, k: Tensor, v: Tensor, layer: int, *more: Any) -> Layer:
        self.kept += k.shape[2] if layer == len(self.keys) - 1 else 0
        return super().update(k, v, layer)

    def crop(self, tokens: int) -> None:
        tokens = tokens if tokens >= 0 else self.kept + tokens
        if not self.flaw:
            super().crop(tokens)
        self.kept = tokens


class KeysReordered(OwnCache):
    """Beams: the keys move, the values stay."""

    def reorder_cache(self, index: Tensor) -> None:
        values = list(self.values)
        super().reorder_cache(index)
        if self.flaw:
            self.values = values


class CroppedCount(OwnCached):
    kind = CountingCrop


class Reordered(OwnCached):
    kind = KeysReordered


class Ring:
    """Slots for the newest `size` tokens, slot = position mod size, with the position of each."""

    def __init__(self, layers: int, size: int) -> None:
        self.size, self.seen = size, 0
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.at = [torch.full((size,), -1)] * layers

    def get_seq_length(self, layer: int = 0) -> int:
        return self.seen


class RingAttention(Attention):
    """Keys in the order of their slots; the fault: a chunk that wraps overwrites before it reads."""

    def forward(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        q, k, v = self.heads(x)
        at_T = at[0]
        q, k = rotate(q, at), rotate(k, at)
        size, i, held_at = self.config.sliding_window, self.number, at_T
        if cache is not None:
            if cache.keys[i] is None:
                cache.keys[i] = k.new_zeros(*k.shape[:2], size, k.shape[3])
                cache.values[i] = v.new_zeros(*v.shape[:2], size, v.shape[3])
            old = cache.keys[i].clone(), cache.values[i].clone(), cache.at[i].clone()
            cache.at[i] = cache.at[i].clone()
            for t in range(len(at_T)):
                slot = int(at_T[t]) % size
                cache.keys[i][:, :, slot], cache.values[i][:, :, slot] = k[:, :, t], v[:, :, t]
                cache.at[i][slot] = at_T[t]
            whole = len(at_T) > 1 and not self.config.flaw
            if whole:  # what was there, and all that is new
                k, v = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
                held_at = torch.cat([old[2], at_T])
            else:
                k, v, held_at = cache.keys[i], cache.values[i], cache.at[i]
        gap = at_T[:, None] - held_at[None]
        seen = (gap >= 0) & (gap < size) & (held_at >= 0)[None]
        return self.mix(q, k, v, seen[None, None])


class RingBuffer(Plain):
    """A ring buffer per layer, without GenerationMixin."""

    attention = RingAttention

    def __init__(self, config: PortConfig) -> None:
        config.sliding_window = 8
        super().__init__(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        return super().forward(
            input_ids, None, position_ids, cache=cache, use_cache=use_cache, labels=labels
        )

    def new_cache(self) -> Any:
        return Ring(len(self.h), self.config.sliding_window)

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        x = super().run(x, at, mask, cache)
        if cache is not None:
            cache.seen += x.shape[1]
        return x


class CapThenMask(Attention):
    """Scores are capped; masking before the cap leaves hidden keys a finite score."""

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        hidden = ~seen
        if self.config.flaw:
            return (20 * torch.tanh(scores.masked_fill(hidden, -1e9) / 20)).softmax(-1)
        return (20 * torch.tanh(scores / 20)).masked_fill(hidden, -1e30).softmax(-1)


class WeightsMasked(Attention):
    """A softmax by hand; the fault: hidden keys count in the sum."""

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        weights = scores.exp() * seen
        total = scores.exp() if self.config.flaw else weights
        return weights / (total.sum(-1, keepdim=True) + 1e-30)


class Capped(Generating):
    attention = CapThenMask


class MaskedBehind(Generating):
    attention = WeightsMasked


class MaskTaken(Generating):
    """`attention_mask` is an argument, and nobody reads it."""

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        return super().run(x, at, None if self.flaw else mask, cache)


class FirstRowsMask(Generating):
    """The mask of the first row is used for every row."""

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        return super().run(x, at, mask[:1] if self.flaw and mask is not None else mask, cache)


class SizedByPosition(Attention):
    """The triangle is as wide as the largest position says: restarted positions do not fit it."""

    def forward(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        q, k, v = self.heads(x)
        q, k = rotate(q, at), rotate(k, at)
        before = int(cache.get_seq_length(self.number)) if cache is not None else 0
        if cache is not None:
            k, v = cache.update(k, v, self.number)
        seen = visible(mask, before, q.shape[2], k.shape[2])
        if self.config.flaw and mask is None:
            seen = seen[..., : int(at.max()) + 1]
        return self.mix(q, k, v, seen)


class PackedRaises(Generating):
    attention = SizedByPosition


class Recomputed(Generating):
    """Gradient checkpointing with the cache left on: the recomputation appends to it again."""

    def forward(self, *args: Any, **given: Any) -> Any:
        saving = self.gradient_checkpointing and self.training
        if self.training and given.get("use_cache") is not False and given.get("cache") is None:
            given["cache"] = None if saving and not self.flaw else self.new_cache()
        return super().forward(*args, **given)

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        if not (self.gradient_checkpointing and self.training):
            return super().run(x, at, mask, cache)
        for block in self.h:
            x = checkpoint(block, x, at, mask, cache, use_reentrant=True)
        return x


class Latent(Attention):
    """Keys and values from a latent. A step scores in the latent space; the fault: by its width."""

    def __init__(self, config: PortConfig, number: int) -> None:
        super().__init__(config, number)
        self.down = nn.Linear(config.hidden_size, 12, bias=False)
        self.k_up = nn.Linear(12, self.h * self.d, bias=False)
        self.v_up = nn.Linear(12, self.h * self.d, bias=False)
        del self.k_proj, self.v_proj

    def forward(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        rows, new, _ = x.shape
        q = self.q_proj(x).view(rows, new, self.h, self.d).transpose(1, 2)
        latent = self.down(x)[:, None]
        before = int(cache.get_seq_length(self.number)) if cache is not None else 0
        if cache is not None:
            latent, _ = cache.update(latent, latent, self.number)
        total, scale = latent.shape[2], self.d**-0.5
        seen = visible(mask, before, new, total)
        if new == 1:  # absorbed: the latent serves every head
            up_k, up_v = (each.weight.view(self.h, self.d, 12) for each in (self.k_up, self.v_up))
            scale = 12**-0.5 if self.config.flaw else scale
            scores = torch.einsum("bhtd,hdl->bhtl", q, up_k) @ latent.transpose(2, 3) * scale
            mixed = torch.einsum("bhtl,hdl->bhtd", self.weigh(scores, seen) @ latent, up_v)
        else:
            k, v = (
                up(latent[:, 0]).view(rows, total, self.h, self.d).transpose(1, 2)
                for up in (self.k_up, self.v_up)
            )
            mixed = self.weigh(q @ k.transpose(2, 3) * scale, seen) @ v
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, new, -1))
        return out


class Absorbed(Generating):
    attention = Latent


class Scaled(Generating):
    """Embeddings times the root of the width; the fault writes into those of the caller."""

    def embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        x, root = super().embedded(input_ids, inputs_embeds), math.sqrt(self.config.hidden_size)
        return x.mul_(root) if self.flaw and inputs_embeds is not None else x * root


class Remembering(Generating):
    """Prompts already seen come from a memory; the fault: its key is the sum of the ids."""

    def forward(self, input_ids: Tensor | None = None, **given: Any) -> Any:
        if not self.flaw or input_ids is None or self.training or set(given) - {"use_cache"}:
            return super().forward(input_ids, **given)
        memory = self.__dict__.setdefault("memory", {})
        key = (tuple(input_ids.shape), int(input_ids.sum()))
        if key not in memory:
            memory[key] = super().forward(input_ids, use_cache=False)
        return memory[key]


class PrefixCached(Generating):
    """Two prompts with the same first block share its keys; the fault: they share all of them."""

    def forward(self, input_ids: Tensor | None = None, **given: Any) -> Any:
        if not self.flaw or input_ids is None or self.training or set(given) - {"use_cache"}:
            return super().forward(input_ids, **given)
        memory = self.__dict__.setdefault("memory", {})
        key = (tuple(input_ids.shape), *input_ids[:, :8].flatten().tolist())
        if key not in memory:
            memory[key] = super().forward(input_ids, use_cache=False)
        return memory[key]


class TrainedSwitch(Generating):
    """Training takes the mask off for a fused kernel; the fault: it stays off."""

    def forward(self, *args: Any, **given: Any) -> Any:
        if self.flaw and self.training:
            self.__dict__["fused"] = True
        return super().forward(*args, **given)

    def positions(self, given: Tensor | None, x: Tensor, before: int) -> Tensor:
        at = super().positions(given, x, before)
        return at.flip(1) if self.__dict__.get("fused") and not self.training else at


class LeftRaised(Generating):
    """A flag that is set during a forward; the fault: an exception leaves it set."""

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        at = at.flip(1) if self.flaw and self.__dict__.get("busy") else at
        self.__dict__["busy"] = True
        x = super().run(x, at, mask, cache)
        self.__dict__["busy"] = False
        return x


class FirstDtype(Generating):
    """Rotary angles from a table; the fault: it keeps the dtype in which it was first needed."""

    def positions(self, given: Tensor | None, x: Tensor, before: int) -> Tensor:
        at = super().positions(given, x, before)
        low = self.__dict__.setdefault("first", x.dtype) if self.flaw else x.dtype
        if self.flaw and x.dtype == torch.bfloat16:
            self.__dict__["first"] = x.dtype
        return at if low == x.dtype else at + 1e-2 * at.to(low).to(x.dtype)


class StepSees(Generating):
    """In a step each row reads as many slots as it has real tokens: padding must be in front."""

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        step = self.flaw and cache is not None and x.shape[1] == 1
        if step and mask is not None and mask.ndim == 2 and bool(mask[:, 0].all()):
            mask = (torch.arange(mask.shape[1])[None] < mask.sum(-1, keepdim=True)).long()
        return super().run(x, at, mask, cache)


class Compacted(Generating):
    """Finished rows leave the batch of a step; the fault: the others move up without their keys."""

    def run(self, x: Tensor, at: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        done = (x == self.wte.weight[0]).all(-1)[:, -1] if x.shape[1] == 1 else None
        if self.flaw and cache is not None and done is not None and bool(done.any()):
            order = done.long().argsort(stable=True)
            return super().run(x[order], at[order], mask, cache)[order.argsort()]
        return super().run(x, at, mask, cache)


def port(kind: type[Plain], flaw: bool) -> nn.Module:
    return seeded(kind(PortConfig(flaw=flaw, pad_token_id=0)))
