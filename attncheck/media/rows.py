"""Rows with pictures or sounds in them, and the forwards over such rows.

Axes: B batch, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import final

import torch
from torch import Tensor

from attncheck.core.capability import Capability
from attncheck.core.errors import Unsupported
from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Media, Positions, counting
from attncheck.model.inputs import Row
from attncheck.model.media import CROSS_MASKS, Medium
from attncheck.model.noise_floor import own_budget
from attncheck.model.subject import Subject
from attncheck.numerics.budget import Budget
from attncheck.numerics.divergence import beyond

FRONT, BETWEEN = 5, 6
"""Tokens in front of the first item, and between two."""
SHORTER = 4
"""How many tokens a padded row lacks."""


LEAST = FRONT + BETWEEN + SHORTER


@final
@dataclass(frozen=True)
class MediaRow:
    """One row and the seeds of the items in it."""

    ids: Row
    seeds: tuple[int, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class MediaRows:
    """Rows with items of one medium, for one subject."""

    subject: Subject
    medium: Medium

    @property
    def kind(self) -> str:
        """`picture` or `sound`."""
        return self.medium.kind

    @property
    def text(self) -> Row:
        """The text around the items: the main row, or as much as two items leave room for.

        Raises:
            Unsupported: they leave too little.
        """
        inputs, items, least = self.subject.inputs, 2 * len(self.medium.span), LEAST
        context = self.subject.facts.context or inputs.room
        room = inputs.room if inputs.room >= items + least else max(context, inputs.room)
        length = min(inputs.length, room - items)
        if length < least:
            raise Unsupported(f"the context is too short for two of the model's {self.kind}s")
        return inputs.row[:length]

    @property
    def end(self) -> int:
        """The position behind the first item."""
        return FRONT + len(self.medium.span)

    def row(self, *seeds: int, salt: int = 0, later: int = 0) -> MediaRow:
        """The text with one item behind the first tokens, or with more; `salt` gives other text,
        `later` moves the items.

        Raises:
            Unsupported: items have no place in a row, so that there cannot be two.
        """
        if len(seeds) > 1:
            self.placed.require()
        text = self.subject.inputs.other(self.text, salt=salt) if salt else self.text
        places = [FRONT + later + BETWEEN * number for number, _ in enumerate(seeds)]
        parts = zip([0, *places], [*places, len(text)], strict=True)
        texts = [text[start:stop] for start, stop in parts]
        placed = ((*self.medium.span, *piece) for piece in texts[1:])
        return MediaRow((*texts[0], *chain.from_iterable(placed)), seeds)

    def end_of(self, row: MediaRow) -> int:
        """The position behind the last item of a row; behind the first tokens where items have no
        place.
        """
        starts = self.medium.starts(torch.tensor(row.ids))
        return (starts[-1] + self.medium.count if starts else FRONT) + len(self.medium.around[1])

    def batch(self, seeds: tuple[tuple[int, ...], ...], shorter: int | None) -> list[MediaRow]:
        """Rows of one length with these items, each with text and places of its own; the row
        numbered `shorter` lacks its last tokens.
        """
        rows = [
            self.row(*each, salt=50 + number, later=number) for number, each in enumerate(seeds)
        ]
        longest = max(len(row.ids) for row in rows)
        filled = [replace(row, ids=self._filled(row.ids, longest)) for row in rows]
        if shorter is not None:
            filled[shorter] = replace(filled[shorter], ids=filled[shorter].ids[:-SHORTER])
        return filled

    def _filled(self, ids: Row, length: int) -> Row:
        return (*ids, *self.subject.inputs.fresh(length - len(ids), salt=61))

    def again(self, seeds: tuple[int, ...], spec: ForwardSpec, subject: Subject) -> Tensor:
        """logits_BTV of a forward that really runs, after a row with an item and a conversation of
        rows with one each.
        """
        subject.passes.replay(self.spec(self.row(seeds[-1])))
        batch = self.batch(tuple((seed,) for seed in seeds), None)
        chunks = (len(batch[0].ids) - 1, 1) if subject.can.steps else ()
        subject.passes.replay(self.spec(*batch, chunks=chunks))
        subject.passes.drop(spec)
        return subject.logits(spec)

    def spec(
        self,
        *rows: MediaRow,
        chunks: tuple[int, ...] = (),
        prompt: int = 0,
        mask: Mask = None,
        positions: Positions | None = None,
        attn: str | None = None,
        cache_kind: str = "",
    ) -> ForwardSpec:
        """The forward over these rows, left-padded by ordinary tokens to the longest; a prompt ends
        where the second chunk begins.
        """
        length = max(len(row.ids) for row in rows)
        lacking = [length - len(row.ids) for row in rows]
        fresh = self.subject.inputs.fresh
        tokens = tuple(
            (*fresh(gap, salt=71), *row.ids) for gap, row in zip(lacking, rows, strict=True)
        )
        if any(lacking):
            mask = Mask2D(tuple((0,) * gap + (1,) * (length - gap) for gap in lacking))
        if any(lacking) and self.counts:
            positions = tuple((0,) * gap + tuple(range(length - gap)) for gap in lacking)
        prompt = prompt or (chunks[0] if chunks else 0)
        media = Media(self.kind, tuple(row.seeds for row in rows), prompt)
        with_items = media if any(media.rows) or self.medium.prefix else None
        return ForwardSpec(
            tokens,
            chunks=chunks,
            positions=positions,
            mask=mask,
            attn=attn,
            cache_kind=cache_kind,
            media=with_items,
        )

    @property
    def not_prefix(self) -> Capability:
        """Rows are read from left to right, items included."""
        why = (
            f"everything up to the end of the prompt is a prefix, read both ways, {self.kind}s too"
        )
        return Capability(why if self.medium.prefix else "")

    @property
    def placed(self) -> Capability:
        """Items have a place in the row."""
        why = f"a {self.kind} has no place in the row: it stands in front of every row"
        return Capability("" if self.medium.span else why)

    @cached_property
    def budget(self) -> Budget:
        """What rounding does to the logits of rows with the items in use: each has a size of its
        own.
        """
        seeds = ((3,), (1, 2)) if self.medium.span else ((1,), (2,))
        return own_budget(self.subject.passes, self.spec(*self.batch(seeds, None)))

    @cached_property
    def reads_masked_states(self) -> bool:
        """Whether a mask over the states of items hides an item from the tokens in front of it, and
        another one moves them all the same.
        """
        if not self.medium.names.intersection(CROSS_MASKS):
            return False
        one_BTV, other_BTV = (
            self.subject.logits(self.spec(self.row(seed)))[:, :FRONT] for seed in (1, 2)
        )
        return beyond(other_BTV, one_BTV, self.budget.value)

    @cached_property
    def counts(self) -> Capability:
        """Explicit positions 0, 1, … are those of the model itself, items included."""
        row = self.row(1)
        positions = counting(1, len(row.ids))
        try:
            given, usual = self.spec(row, positions=positions), self.spec(row)
            differ = beyond(
                self.subject.logits(given), self.subject.logits(usual), self.budget.value
            )
        except Unsupported as reason:
            return Capability(str(reason))
        why = f"positions 0, 1, … are not those that the model gives a row with a {self.kind}"
        return Capability(why if differ else "")
