"""Batches of unequal rows, padded on one side: the tokens, the mask, the positions, and where the
real tokens are.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.core.finding import AtMost, Measurement, Verdict
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Positions
from attncheck.model.inputs import Inputs, Row, Tokens
from attncheck.model.subject import Subject
from attncheck.model.switching import chosen
from attncheck.numerics.divergence import holes

Side = Literal["left", "right"]


@final
@dataclass(frozen=True, kw_only=True)
class Padded:
    """Rows as they are alone, and the batch that padding to `length` makes of them. `pad` is the
    model's own padding id.
    """

    rows: Tokens
    length: int
    pad: int
    inputs: Inputs

    @property
    def turned(self) -> Padded:
        """The same rows from the last to the first: a model that looks at one row of the mask takes
        another one for all.
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
        """The padded rows, (B, T): filled with the padding id, or for a `salt` with ordinary tokens
        drawn by it.
        """
        fills = (
            [self.inputs.fresh(self.padding(row), 31 * salt + row) for row in range(len(self.rows))]
            if salt
            else None
        )
        return self._laid_out(side, self.rows, fills)

    def mask(self, side: Side) -> Mask2D:
        """1 for each real token, 0 under the padding."""
        return Mask2D(self._laid_out(side, tuple((1,) * len(row) for row in self.rows)))

    def positions(self, side: Side) -> Positions:
        """0, 1, … from the first real token on; 0 under the padding on the left, the count goes on
        under that on the right.
        """
        if side == "right":
            return (tuple(range(self.length)),) * len(self.rows)
        return self._laid_out(side, tuple(tuple(range(len(row))) for row in self.rows))

    def spec(
        self,
        side: Side,
        *,
        salt: int = 0,
        explicit: bool = False,
        chunks: tuple[int, ...] = (),
        attn: str | None = None,
    ) -> ForwardSpec:
        """The pass of the padded batch."""
        return ForwardSpec(
            self.tokens(side, salt),
            chunks=chunks,
            positions=self.positions(side) if explicit else None,
            mask=self.mask(side),
            attn=attn,
        )

    def _laid_out(
        self, side: Side, contents: tuple[Row, ...], fills: list[Row] | None = None
    ) -> tuple[Row, ...]:
        """Contents of unequal lengths with zeros, the padding id or `fills` beside them."""
        number = self.pad if contents is self.rows else 0
        laid = fills or [(number,) * self.padding(row) for row in range(len(contents))]
        return tuple(
            fill + row if side == "left" else row + fill
            for fill, row in zip(laid, contents, strict=True)
        )


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
    """The model's padding id where it has a usable one, else an ordinary token."""
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


def eager_in_plain_float64(subject: Subject, batch: Padded) -> Measurement:
    """One case: a left-padded batch under eager attention in float64 as the library computes it,
    hidden float32 included.

    Raises:
        Unsupported: the model does not run in float64, or has no eager attention.
    """
    if not subject.precision.promoted:
        raise Unsupported("concerns float64 only")
    explicit = bool(subject.can.takes_positions)
    spec = replace(batch.spec("left", salt=1, explicit=explicit, attn="eager"), unpromoted=True)
    logits_BTV = subject.logits(spec)
    lost = holes(logits_BTV)
    wanted = chosen(subject, "eager") and "float64" in (
        subject.settings.dtype,
        subject.loaded.own_dtype,
    )
    return AtMost(
        "eager in plain float64",
        float(lost),
        "values that are not finite",
        broken=Verdict.FAIL if wanted else Verdict.WARN,
        positions=logits_BTV.shape[0] * logits_BTV.shape[1],
        nonfinite=lost,
        note="left padding under eager attention in float64: this combination only",
    )
