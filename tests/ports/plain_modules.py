"""Models that are no `PreTrainedModel`, or take their arguments as `**kwargs`.

Axes: B batch, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ports.language_models import Generating, Plain, port
from ports.parts import Attention, Block, Norm, PortConfig, seeded


class Nano(nn.Module):
    """nanoGPT: `(logits, loss)`, learned positions, and the logits of the last token alone where
    no targets are given. The fault: the triangle is one too wide.
    """

    def __init__(self, flaw: bool) -> None:
        super().__init__()
        self.config = config = PortConfig(flaw=flaw)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(256, config.hidden_size)
        self.h = nn.ModuleList(Block(config, Attention(config, i)) for i in range(2))
        self.ln_f = Norm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def hidden(self, idx: Tensor) -> Tensor:
        length = idx.shape[1]
        x, at = self.wte(idx) + self.wpe(torch.arange(length)), torch.zeros_like(idx)
        seen = torch.ones(length, length, dtype=torch.bool).tril(int(self.config.flaw))
        for block in self.h:
            x = block(x, at, seen[None, None], None)
        return self.ln_f(x)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.hidden(idx)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class NanoWhole(Nano):
    """The same with the logits of every position."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.lm_head(self.hidden(idx))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Presents(nn.Module):
    """A tuple of keys and values per layer, given and returned beside the logits, as before 2023.
    The fault: a chunk behind cached tokens gets the triangle of its own length.
    """

    def __init__(self, flaw: bool) -> None:
        super().__init__()
        self.config = config = PortConfig(flaw=flaw)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, Attention(config, i)) for i in range(2))
        self.norm = Norm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> tuple[Any, ...]:
        held = [list(each) for each in past_key_values or ()]
        before = held[0][0].shape[2] if held else 0
        new = input_ids.shape[1]
        x, at = self.embed_tokens(input_ids), torch.arange(before, before + new)[None]
        seen = torch.ones(before + new, before + new, dtype=torch.bool).tril()[before:]
        if self.config.flaw and before and new > 1:
            seen = torch.ones(new, before + new, dtype=torch.bool).tril()
        store = TupleStore(held)
        for layer in self.layers:
            x = layer(x, at.expand(x.shape[:2]), seen[None, None], store)
        logits = self.lm_head(self.norm(x))
        presents = tuple(tuple(each) for each in store.held)
        return (logits, presents) if use_cache else (logits,)


class TupleStore:
    """What `Attention` updates, as the old tuples."""

    def __init__(self, held: list[list[Tensor]]) -> None:
        self.held = held

    def get_seq_length(self, layer: int) -> int:
        return self.held[layer][0].shape[2] if layer < len(self.held) else 0

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if layer < len(self.held):
            old = self.held[layer]
            self.held[layer] = [torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)]
        else:
            self.held.append([k, v])
        return self.held[layer][0], self.held[layer][1]


class Keywords(Generating):
    """Everything comes as keywords; the fault: positions of a cached call start from zero."""

    def forward(self, **kwargs: Any) -> Any:
        return super().forward(**kwargs)

    def positions(self, given: Tensor | None, x: Tensor, before: int) -> Tensor:
        return super().positions(None if self.flaw else given, x, 0 if self.flaw else before)


class Wrapped(nn.Module):
    """A wrapper that passes everything on; the fault: all but the mask."""

    def __init__(self, flaw: bool) -> None:
        super().__init__()
        self.inner = port(Generating, False)
        self.config, self.flaw = self.inner.config, flaw

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.flaw:
            kwargs.pop("attention_mask", None)
        return self.inner(*args, **kwargs)


class DictOutput(Plain):
    """Answers with a plain dictionary; the fault: a chunk on the cache counts from one too far."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return dict(super().forward(*args, **kwargs))

    def positions(self, given: Tensor | None, x: Tensor, before: int) -> Tensor:
        return super().positions(given, x, before + (1 if self.flaw and before else 0))


def module(kind: type[nn.Module], flaw: bool) -> nn.Module:
    return seeded(kind(flaw))
