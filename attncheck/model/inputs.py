"""Token sequences that reach a fault: long enough for every window, chunk and rotary switch, cut on
both sides of each. Real text where there is a tokenizer, seeded ids otherwise, no special ids.

Axes: B batch, T positions, S encoder positions, W hidden width.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported
from attncheck.model.compat import config_of, text_config
from attncheck.model.facts import ROPE_SWITCH, Boundary, Facts, configs_in, first_int
from attncheck.model.signature import parameters_of

Row = tuple[int, ...]
Tokens = tuple[Row, ...]

SHORTEST = 4
USUAL = 24
LONGEST = 160
EVERY = 48
"""A row up to this long is cut at every position."""
ENDLESS = 1 << 20
VARIED = 0.25
"""The share of different ids below which a text is no test: a tokenizer that does not know the
language gives one id again and again.
"""
TEXT = (
    "The lighthouse keeper counted seven ships before dawn, wrote their names in the ledger, "
    "and lit the lamp again. When the fog lifted, only six had reached the harbour; the seventh, "
    "Marigold, was already past the northern reef, its captain asleep and its cargo of copper "
    "wire, lemons and unopened letters drifting slowly towards the ice. Nobody on shore noticed "
    "until the baker, who had been promised the lemons, asked why the bell had not been rung. "
)
ENCODER_LENGTH = 11
ENCODER_SEED = 17
WIDTHS = ("d_model", "hidden_size")


@final
@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The token material of one model: the main row, ids to draw from, cuts, and the boundaries
    within reach.

    `room` is how many tokens a row may have within the context and below every rotary switch.
    """

    row: Row
    pool: Row
    eos: int | None
    boundaries: tuple[Boundary, ...]
    unreached: tuple[Boundary, ...]
    seed: int
    from_text: bool
    room: int = 0

    @property
    def tokens(self) -> Tokens:
        """The main input, (1, T)."""
        return (self.row,)

    @cached_property
    def ordinary(self) -> frozenset[int]:
        """The ids of the pool."""
        return frozenset(self.pool)

    @property
    def length(self) -> int:
        """T of the main input."""
        return len(self.row)

    @property
    def half(self) -> int:
        """Where to cut the main input in two: its middle, or the nearest position at which no
        window and no chunk begins, since nothing need cross there.
        """
        middle, lengths = self.length // 2, {each.length for each in self.boundaries}
        near = (middle, middle - 1, middle + 1, middle - 2, middle + 2)
        inside = (cut for cut in near if 1 < cut < self.length - 1)
        return next((cut for cut in inside if all(cut % each for each in lengths)), middle)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions to cut at: both sides of every boundary, the middle, the ends; each in
        1..T-1.
        """
        near = [b.length + step for b in self.boundaries for step in (-1, 0, 1)]
        wanted = {1, self.length // 2, self.length - 1, *near}
        return tuple(sorted(cut for cut in wanted if 0 < cut < self.length))

    @property
    def everywhere(self) -> tuple[int, ...]:
        """Every position to cut at; of a long row those next to an end or a boundary, and every
        eighth.
        """
        whole = range(1, self.length)
        if self.length <= EVERY:
            return tuple(whole)
        ends = (*whole[: EVERY // 4], *whole[-EVERY // 4 :])
        return tuple(sorted({*ends, *self.cuts, *whole[::8]}))

    def other(
        self, row: Iterable[int], start: int = 0, stop: int | None = None, salt: int = 1
    ) -> Row:
        """The row with every token in [start, stop) replaced by another one of the pool. Ids that
        the pool does not hold stay, save the end of a text: they may stand for a picture.
        """
        old = tuple(row)
        end = len(old) if stop is None else stop
        draw = random.Random(self.seed * 1009 + salt)
        return tuple(
            self._not(token, draw) if start <= i < end and self._replaceable(token) else token
            for i, token in enumerate(old)
        )

    def _replaceable(self, token: int) -> bool:
        return token in self.ordinary or token == self.eos

    def _not(self, token: int, draw: random.Random) -> int:
        drawn = [draw.choice(self.pool) for _ in range(16)]
        return draw.choice(
            [each for each in drawn if each != token]
            or [each for each in self.pool if each != token]
        )

    def fresh(self, length: int, salt: int) -> Row:
        """A row of seeded ids from the pool."""
        draw = random.Random(self.seed * 7919 + salt)
        return tuple(draw.choice(self.pool) for _ in range(length))


def build_inputs(
    facts: Facts, config: Any, tokenizer: Any, *, seed: int, prompt: str | None, length: int | None
) -> Inputs:
    """Choose the token material of a model.

    Raises:
        Unsupported: the vocabulary or the context is too small to compare anything.
    """
    wanted = choose_length(facts, length)
    pool = _pool(facts.vocab, special_ids(config, tokenizer))
    draw = random.Random(seed)
    text = _encoded(tokenizer, prompt, wanted, pool)
    eos = eos_of(config, tokenizer)
    switches = [each.length for each in facts.boundaries if each.kind == ROPE_SWITCH]
    return Inputs(
        row=text + tuple(draw.choice(pool) for _ in range(wanted - len(text))),
        pool=pool,
        eos=eos if eos is not None and eos < facts.vocab else None,
        boundaries=tuple(each for each in facts.boundaries if each.length + 1 < wanted),
        unreached=tuple(each for each in facts.boundaries if each.length + 1 >= wanted),
        seed=seed,
        from_text=bool(text),
        room=min([facts.context or ENDLESS, *switches]),
    )


def choose_length(facts: Facts, length: int | None) -> int:
    """T: past twice each boundary that can be reached, within the context.

    Raises:
        Unsupported: the context is too short to compare anything.
    """
    ceiling = length or LONGEST
    if not any(boundary.kind == ROPE_SWITCH for boundary in facts.boundaries):
        ceiling = min(ceiling, facts.context or ceiling)
    wanted = [past for past in map(_past, facts.boundaries) if past <= ceiling]
    chosen = min(length or max([USUAL, *wanted]), ceiling)
    if chosen < SHORTEST:
        raise Unsupported(
            f"a context of {ceiling} tokens is too short: at least {SHORTEST} are needed"
        )
    return chosen


def _past(boundary: Boundary) -> int:
    return boundary.length + 8 if boundary.kind == ROPE_SWITCH else 2 * boundary.length + 5


def special_ids(config: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that the config or the tokenizer gives a meaning of its own."""
    found: set[int] = set(getattr(tokenizer, "all_special_ids", None) or [])
    for part in (*configs_in(config), text_config(config)):
        for name, value in vars(part).items() if part is not None else ():
            if name.endswith(("_token_id", "_token_ids", "_token_index")):
                ids = value if isinstance(value, (list, tuple)) else [value]
                found.update(each for each in ids if isinstance(each, int))
    return frozenset(found)


def eos_of(config: Any, tokenizer: Any) -> int | None:
    """The end-of-sequence id: that of the config, otherwise of the tokenizer."""
    ids = (getattr(each, "eos_token_id", None) for each in (text_config(config), tokenizer))
    flat = [value[0] if isinstance(value, (list, tuple)) and value else value for value in ids]
    return next((value for value in flat if isinstance(value, int) and value >= 0), None)


def _pool(vocab: int, special: frozenset[int]) -> Row:
    plain = tuple(i for i in range(vocab) if i not in special)
    pool = plain if len(plain) >= 2 else tuple(range(vocab))
    if len(pool) < 2:
        raise Unsupported(f"a vocabulary of {vocab} leaves no second token to compare with")
    return pool


def _encoded(tokenizer: Any, prompt: str | None, length: int, pool: Row) -> Row:
    """The ids of the text; none where they are too much alike for anything to be seen in them."""
    if tokenizer is None:
        return ()
    ids = tokenizer(prompt or TEXT * (1 + length // 60), add_special_tokens=False)["input_ids"]
    allowed = set(pool)
    row = tuple(i for i in ids if i in allowed)[:length]
    return row if prompt or len(set(row)) >= min(VARIED * len(row), len(pool) / 2) else ()


def fixed_input(model: nn.Module, pool: tuple[int, ...]) -> dict[str, Any]:
    """The input of an encoder-decoder model's encoder, the same in every forward: under it, the
    decoder is a decoder like any other. Empty for a model without an encoder.

    Token ids (1, S) where the encoder reads ids, a drawn encoder output (1, S, W) where it reads
    sound or pictures.
    """
    config = config_of(model)
    parameters = parameters_of(model)
    encodes = getattr(config, "is_encoder_decoder", config is None and "input_ids" in parameters)
    if not encodes or "decoder_input_ids" not in parameters:
        return {}
    generator = torch.Generator().manual_seed(ENCODER_SEED)
    if getattr(model, "main_input_name", "input_ids") == "input_ids":
        chosen_S = torch.randint(len(pool), (ENCODER_LENGTH,), generator=generator)
        return {"input_ids": torch.tensor([[pool[int(index)] for index in chosen_S]])}
    width = first_int(config, WIDTHS) or first_int(text_config(config), WIDTHS) or 1
    size = (1, ENCODER_LENGTH, width)
    return {"encoder_outputs": (torch.randn(size, generator=generator, dtype=torch.float64),)}


def for_rows(value: Any, like_BT: Tensor, dtype: torch.dtype) -> Any:
    """A fixed argument for as many rows as a call has, on its device; floating values take the
    model's dtype.
    """
    if isinstance(value, tuple):
        return tuple(for_rows(each, like_BT, dtype) for each in value)
    if not isinstance(value, Tensor):
        return value
    moved = value.to(like_BT.device, dtype if value.is_floating_point() else value.dtype)
    return moved.expand(like_BT.shape[0], *moved.shape[1:])
