"""Packed rows: several documents of unequal lengths in each, and cases that show one read another.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

from attncheck.probing import (
    ForwardSpec,
    Inputs,
    Mask4D,
    Measurement,
    Positions,
    Subject,
    Tokens,
    Verdict,
    blocks,
    counting,
    merged,
)

LEAST = 2
"""Tokens of the shortest document: one of text and its EOS."""
SHARES = ((1 / 6, 1 / 2), (3 / 8, 5 / 8))
"""Where the documents of each row begin, as shares of the row: no two lengths in a row are equal.
"""


@final
@dataclass(frozen=True)
class Packed:
    """Rows of documents, each with an EOS at its end. `boundaries` are the ends of each row and
    where its documents meet.

    The boundaries of the two rows differ, so that a mask of one row that is used for both cuts a
    document of the other.
    """

    rows: Tokens
    boundaries: tuple[tuple[int, ...], ...]

    @property
    def first(self) -> Packed:
        """The first row alone."""
        return Packed(self.rows[:1], self.boundaries[:1])

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """How many tokens each document of each row has."""
        return tuple(
            tuple(stop - start for start, stop in pairwise(each)) for each in self.boundaries
        )

    @property
    def restarting(self) -> Positions:
        """Positions that begin with 0 in each document."""
        return tuple(tuple(at for length in each for at in range(length)) for each in self.lengths)

    @property
    def mask(self) -> Mask4D:
        """Every document in a block of its own."""
        return Mask4D(tuple(blocks(each).segments[0] for each in self.lengths))

    @property
    def replaced(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of the document that is replaced: the first one of the first row, the last
        but one of the second.
        """
        return tuple(
            (each[-3], each[-2]) if row else (each[0], each[1])
            for row, each in enumerate(self.boundaries)
        )

    @property
    def watched(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of one document of each row: another is before it, and a boundary of the
        other row would cut it.
        """
        return tuple(
            (each[1], each[2]) if row else (each[-2], each[-1])
            for row, each in enumerate(self.boundaries)
        )

    def changed(self, inputs: Inputs) -> Packed:
        """The same rows with other tokens in the documents that are to be replaced, their EOS
        included.
        """
        spans = zip(self.rows, self.replaced, strict=True)
        return replace(
            self, rows=tuple(inputs.other(row, start, stop, salt=5) for row, (start, stop) in spans)
        )


def pack(inputs: Inputs) -> Packed:
    """Two rows of three documents, of two where rows are short; a plain token ends a document where
    no EOS is known.
    """
    rows, boundaries = [], []
    for row, shares in zip((inputs.row, inputs.other(inputs.row, salt=7)), SHARES, strict=True):
        first, second = (max(LEAST, int(share * inputs.length)) for share in shares)
        starts = (first, second) if second - first >= LEAST else (first,)
        ends = {start - 1: inputs.eos for start in starts if inputs.eos is not None}
        rows.append(tuple(ends.get(at, token) for at, token in enumerate(row)))
        boundaries.append((0, *starts, inputs.length))
    return Packed(tuple(rows), tuple(boundaries))


def blocked(subject: Subject, packed: Packed, name: str) -> Measurement:
    """With a 4D mask of blocks and restarted positions, a document of each row gives its own logits
    alone.
    """
    together, cases = ForwardSpec(packed.rows, positions=packed.restarting, mask=packed.mask), []
    for row, (start, stop) in enumerate(packed.watched):
        document, length = packed.rows[row][start:stop], stop - start
        alone = ForwardSpec((document,), positions=counting(1, length), mask=blocks((length,)))
        at, note = slice(start, stop), f"row {row}"
        cases.append(
            subject.compare_forwards(name, together, alone, row=row, at=at, alone=True, note=note)
        )
    return merged(name, cases)


def isolated(
    subject: Subject, packed: Packed, name: str, call: ForwardSpec, broken: Verdict
) -> Measurement:
    """In each row a document is replaced, and those after it must stay. `call` is the forward but
    for tokens and positions.

    Where the first row alone shows a leak as well, the case is about that row: it is easier to
    read. Where it shows none, the model does isolate, and takes one row's documents for another's.
    """
    usual, changed = (
        replace(call, tokens=each.rows, positions=each.restarting)
        for each in (packed, packed.changed(subject.inputs))
    )
    cases = []
    for row, (_, stop) in enumerate(packed.replaced):
        note, at = (
            f"documents after the boundary at {stop} move with the one before",
            slice(stop, None),
        )
        cases.append(
            subject.compare_forwards(name, changed, usual, row=row, at=at, broken=broken, note=note)
        )
    case = merged(name, cases)
    if not case.beyond or len(packed.rows) == 1:
        return case
    single = isolated(subject, packed.first, name, call, broken)
    if single.beyond:
        return single
    if not single.judged:
        return case
    note = f"{case.note}; one row alone isolates them"
    return replace(case, broken=Verdict.FAIL, note=note)
