"""Rows of unequal lengths padded to one: tokens, mask, positions, and where the real tokens are.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.core.measurement import Comparison
from attncheck.core.merging import merged
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions
from attncheck.model.inputs import Inputs, Row, Tokens
from attncheck.model.subject import Subject

Side = Literal["left", "right"]


@final
@dataclass(frozen=True, kw_only=True)
class Padded:
    """Unpadded rows, and the batch that padding to `length` makes of them."""

    rows: Tokens
    length: int
    pad: int
    inputs: Inputs

    @property
    def reversed(self) -> Padded:
        """The same rows in reverse order: a model that applies the mask of one row to all then
        takes another one.
        """
        return replace(self, rows=self.rows[::-1])

    def padding(self, row: int) -> int:
        """How many slots of a row are padding."""
        return self.length - len(self.rows[row])

    def real(self, side: Side) -> tuple[slice, ...]:
        """Where the real tokens of each row are."""
        return tuple(
            slice(self.length - len(row), self.length) if side == "left" else slice(0, len(row))
            for row in self.rows
        )

    def tokens(self, side: Side, salt: int = 0) -> Tokens:
        """The padded rows, (B, T): filled with the padding id or, for a `salt`, with ordinary
        tokens drawn by it.
        """
        fills = [
            self.inputs.fresh(self.padding(row), 31 * salt + row)
            if salt
            else (self.pad,) * self.padding(row)
            for row in range(len(self.rows))
        ]
        return self._beside(side, self.rows, fills)

    def mask(self, side: Side) -> Mask2D:
        """1 for each real token, 0 under the padding."""
        return Mask2D(self._beside(side, tuple((1,) * len(row) for row in self.rows)))

    def positions(self, side: Side) -> Positions:
        """0, 1, … from the first real token on. Under padding on the left they are 0, under padding
        on the right they count on.
        """
        if side == "right":
            return (tuple(range(self.length)),) * len(self.rows)
        return self._beside(side, tuple(tuple(range(len(row))) for row in self.rows))

    def spec(
        self,
        side: Side,
        *,
        salt: int = 0,
        explicit: bool = False,
        chunks: tuple[int, ...] = (),
        attn: str | None = None,
    ) -> ForwardSpec:
        """The forward of the padded batch."""
        return ForwardSpec(
            self.tokens(side, salt),
            chunks=chunks,
            positions=self.positions(side) if explicit else None,
            mask=self.mask(side),
            attn=attn,
        )

    def _beside(
        self, side: Side, contents: tuple[Row, ...], fills: list[Row] | None = None
    ) -> tuple[Row, ...]:
        """Contents of unequal lengths with `fills` (or zeros) beside them."""
        fills = fills or [(0,) * self.padding(row) for row in range(len(contents))]
        return tuple(
            fill + row if side == "left" else row + fill
            for fill, row in zip(fills, contents, strict=True)
        )


def padded_ids(subject: Subject, rows: Tokens, length: int) -> tuple[Tensor, Tensor]:
    """(ids_BT, mask_BT) of rows padded on the left to one length."""
    batch = Padded(rows=rows, length=length, pad=pad_id(subject), inputs=subject.inputs)
    ids_BT = subject.passes.ids(batch.tokens("left"))
    return ids_BT, torch.tensor(batch.mask("left").rows, device=ids_BT.device)


def without_padding(logits_BTV: Tensor, spec: ForwardSpec) -> Tensor:
    """The logits with zeros under the padding."""
    if not isinstance(spec.mask, Mask2D):
        return logits_BTV
    real_BT = torch.tensor(spec.mask.rows, dtype=torch.bool, device=logits_BTV.device)
    return logits_BTV.masked_fill(~real_BT[..., None], 0.0)


def own_pad_id(subject: Subject) -> int | None:
    """The padding id that the config names, where the vocabulary holds it."""
    pad = getattr(subject.config, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < subject.facts.vocab else None


def pad_id(subject: Subject) -> int:
    """The model's padding id where it has a usable one, otherwise an ordinary token."""
    own = own_pad_id(subject)
    return subject.inputs.pool[0] if own is None else own


def pad_rows(subject: Subject, amounts: tuple[int, ...] = ()) -> Padded:
    """The main row whole and without its first tokens: by one, and by a third (an odd number, never
    a whole chunk).
    """
    inputs = subject.inputs
    cut = amounts or (1, (inputs.length // 3) | 1)
    rows = tuple(inputs.row[amount:] for amount in (0, *cut) if amount < inputs.length)
    return Padded(rows=rows, length=inputs.length, pad=pad_id(subject), inputs=inputs)


def left_padded(
    subject: Subject, batch: Padded, chunks: tuple[int, ...] = (), attn: str | None = None
) -> ForwardSpec:
    """The left-padded batch, its positions counted from the first real token where the model takes
    positions.
    """
    explicit = bool(subject.can.takes_positions)
    return batch.spec("left", salt=1, explicit=explicit, chunks=chunks, attn=attn)


def compare_rows(
    subject: Subject, batch: Padded, name: str, got: ForwardSpec, want: ForwardSpec, note: str = ""
) -> Comparison:
    """One case: two forwards of the left-padded batch, where the real tokens of each row are.

    Each forward is run once for all rows: the logits of a large vocabulary are not remembered.
    """
    got_BTV, want_BTV = subject.logits(got), subject.logits(want)
    cases = []
    for row, real in enumerate(batch.real("left")):
        place = slice(row, row + 1), real
        cases.append(
            subject.compare(
                name,
                got_BTV[place],
                want_BTV[place],
                offset=real.start or 0,
                note=note,
                spec=(got, want),
            )
        )
    return merged(name, cases)
