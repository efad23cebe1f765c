"""How a forward is called, as data: everything that can change its logits.

Axes: B batch, T positions of the whole forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from attncheck.model.inputs import Tokens

Positions = tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True)
class Mask2D:
    """A number per token, 1 to attend to it and 0 for padding, as a tokenizer returns it, in
    torch's dtype of that name.
    """

    rows: tuple[tuple[int, ...], ...]
    dtype: str = "int64"


@final
@dataclass(frozen=True)
class Mask4D:
    """Explicit pairs: query i reads key j when j <= i and both carry the same segment number.

    `boolean` passes it as booleans instead of numbers to be added to the scores.
    """

    segments: tuple[tuple[int, ...], ...]
    boolean: bool = False

    def allowed_BTT(self) -> Tensor:
        """(B, T, T) booleans, queries by keys."""
        segment_BT = torch.tensor(self.segments)
        same_BTT = segment_BT[:, :, None] == segment_BT[:, None, :]
        return same_BTT & torch.ones(same_BTT.shape[1:], dtype=torch.bool).tril()


Mask = Mask2D | Mask4D | None


@final
@dataclass(frozen=True)
class Media:
    """Pictures or sounds beside the tokens: for each row the seeds of its items, in their order.

    `prompt` is how many tokens the prompt has, which some models read both ways; 0 is all of them.
    `without` are arguments that are left out.
    """

    kind: str
    rows: tuple[tuple[int, ...], ...]
    prompt: int = 0
    without: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class ForwardSpec:
    """How a forward is called. `chunks` are the lengths fed one after the other on a cache; empty
    means one forward.

    `cache_kind` is a kind of `attncheck.model.cache_kinds` that is made in advance; empty leaves it
    to the model. `attentions` requests the attention weights as well. `unpromoted` leaves hidden
    float32 where the library has it. `media` are pictures or sounds beside the tokens.
    """

    tokens: Tokens
    chunks: tuple[int, ...] = ()
    positions: Positions | None = None
    mask: Mask = None
    use_cache: bool | None = False
    attn: str | None = None
    cache_kind: str = ""
    attentions: bool = False
    unpromoted: bool = False
    media: Media | None = None

    @property
    def length(self) -> int:
        """T of the whole forward."""
        return len(self.tokens[0])

    @property
    def cuts(self) -> tuple[int, ...]:
        """The positions at which a new chunk starts; none where every token is one."""
        return tuple(accumulate(self.chunks))[:-1] if len(self.chunks) < self.length else ()

    @property
    def promised(self) -> bool:
        """Whether a signature promises the call: not a 4D mask, nor a mask of another dtype than a
        tokenizer's.
        """
        return self.mask is None or (isinstance(self.mask, Mask2D) and self.mask.dtype == "int64")

    def shortened(self, length: int) -> ForwardSpec:
        """The same call for the last tokens only, `length` of them, without pictures and sounds: in
        two chunks, the second of one token or of several as here.
        """
        several = max(self.chunks[1:], default=1) > 1
        prefill = length // 2 if several else length - 1
        tail = slice(self.length - length, None)
        positions = self.positions and tuple(row[:length] for row in self.positions)
        mask: Mask = self.mask
        if isinstance(mask, Mask2D):
            mask = replace(mask, rows=tuple(row[tail] for row in mask.rows))
        if isinstance(mask, Mask4D):
            mask = replace(mask, segments=tuple(row[tail] for row in mask.segments))
        return replace(
            self,
            tokens=tuple(row[tail] for row in self.tokens),
            chunks=self.chunks and (prefill, length - prefill),
            positions=positions,
            mask=mask,
            media=None,
        )

    def of_rows(self, rows: tuple[int, ...]) -> ForwardSpec:
        """The same call for these rows of the batch, which may repeat."""
        mask, media = self.mask, self.media
        if isinstance(mask, Mask2D):
            mask = replace(mask, rows=tuple(mask.rows[row] for row in rows))
        if isinstance(mask, Mask4D):
            mask = replace(mask, segments=tuple(mask.segments[row] for row in rows))
        return replace(
            self,
            tokens=tuple(self.tokens[row] for row in rows),
            positions=self.positions and tuple(self.positions[row] for row in rows),
            mask=mask,
            media=media and replace(media, rows=tuple(media.rows[row] for row in rows)),
        )

    @property
    def cached(self) -> bool:
        """Whether a cache is read or filled."""
        return bool(self.chunks) or bool(self.cache_kind) or self.use_cache is not False


def counting(rows: int, length: int, start: int = 0) -> Positions:
    """Positions start, start + 1, … for each row."""
    return (tuple(range(start, start + length)),) * rows


def all_ones(tokens: Tokens) -> Mask2D:
    """The 2D mask of an unpadded batch."""
    return Mask2D(tuple((1,) * len(row) for row in tokens))


def causal(tokens: Tokens) -> Mask4D:
    """The explicit 4D mask of an unpadded batch: plain causality."""
    return Mask4D(tuple((0,) * len(row) for row in tokens))


def blocks(lengths: tuple[int, ...]) -> Mask4D:
    """The 4D mask of one row of documents of these lengths, each causal and isolated."""
    return Mask4D((tuple(number for number, length in enumerate(lengths) for _ in range(length)),))


def float_mask(allowed_BTT: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A 4D mask to be added to the scores: 0 where allowed, very negative elsewhere.

    A float mask works in every implementation; eager adds a boolean one as 0 and 1. The smallest
    float32 is used even for float64, since eager attention may compute its softmax in float32,
    where the smallest float64 becomes -inf.
    """
    lowest = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)
    mask_BTT = torch.zeros(allowed_BTT.shape, dtype=dtype).masked_fill(~allowed_BTT, lowest)
    return mask_BTT[:, None].to(device)


def words_for(spec: ForwardSpec, start: int, size: int) -> str:
    """What is special about a forward, in words."""
    several = "with several tokens " if size > 1 else ""
    ways = {
        f"{several}on a filled cache": start > 0,
        "with a cache": start == 0 and spec.cached,
        "with `position_ids`": spec.positions is not None,
        "with a 2D mask": isinstance(spec.mask, Mask2D),
        "with a 4D mask": isinstance(spec.mask, Mask4D),
        f"with `{spec.attn}` attention": spec.attn is not None,
        "with attention weights": spec.attentions,
        f"with a {spec.media and spec.media.kind}": spec.media is not None,
    }
    return " and ".join(way for way, so in ways.items() if so) or f"with {size} tokens"
