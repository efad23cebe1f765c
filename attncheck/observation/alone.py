"""Each row of a batch compared with itself alone and without padding: for faults that the trusted
path has as well, since it runs the same batch.

Axes: B batch, H heads, T query positions, S key slots, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from attncheck.attention.call import AttentionCall
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.observation.deviation import Deviation
from attncheck.observation.ledger import Ledger, LedgerCall


@final
@dataclass(frozen=True)
class LoneRow:
    """One row of a forward, its padding on the left cut off.

    `padding` counts the slots that are cut.
    """

    whole: ForwardSpec
    row: int
    padding: int

    @property
    def spec(self) -> ForwardSpec:
        """One uncached forward of this row."""
        cut = slice(self.padding, None)
        given = self.whole.positions
        positions = None if given is None else (given[self.row][cut],)
        return ForwardSpec(
            (self.whole.tokens[self.row][cut],), chunks=self.chunks, positions=positions
        )

    @property
    def chunks(self) -> tuple[int, ...]:
        """The sizes of the calls, less the padding in them."""
        left, found = self.padding, list[int]()
        for size in self.whole.chunks:
            found.append(max(0, size - left))
            left = max(0, left - size)
        sizes = tuple(size for size in found if size)
        return sizes if len(sizes) > 1 else ()

    def of(self, ledger: Ledger) -> Ledger:
        """What the ledger holds of this row."""
        calls = {name: list(self._entries(found)) for name, found in ledger.calls.items()}
        return replace(ledger, calls=calls)

    def _entries(self, entries: list[LedgerCall]) -> Iterator[LedgerCall]:
        start = self.whole.length - sum(each.call.query_BHTD.shape[2] for each in entries)
        for entry in entries:
            new = entry.call.query_BHTD.shape[2]
            cut = min(new, max(0, self.padding - max(0, start)))
            start += new
            if cut < new:
                yield self._entry(entry, cut, start)

    def in_batch(self, found: Deviation) -> Deviation:
        """A deviation of this row by its tokens in the batch."""
        at, key, start = (
            each + self.padding if each > least else each
            for each, least in ((found.at, -1), (found.key, -1), (found.start, 0))
        )
        return replace(found, row=self.row, at=at, key=key, start=start)

    def _entry(self, entry: LedgerCall, cut: int, seen: int) -> LedgerCall:
        inside = entry.inside
        return replace(
            entry,
            call=self._call(entry.call, cut, seen),
            context_BTHD=entry.context_BTHD[self.row : self.row + 1, cut:],
            inside=None if inside is None else self._call(inside, cut, seen),
            inside_BTHD=None
            if entry.inside_BTHD is None
            else entry.inside_BTHD[self.row : self.row + 1, cut:],
        )

    def _call(self, call: AttentionCall, cut: int, seen: int) -> AttentionCall:
        """The row's part of a call; `seen` tokens are cached or new, of which a window keeps the
        newest.
        """
        here, slots = slice(self.row, self.row + 1), call.key_BGSD.shape[2]
        old = max(0, self.padding - max(0, seen - slots))
        mask = call.mask
        if mask is not None and mask.ndim == 4:
            rows = mask if mask.shape[0] == 1 else mask[here]
            queries = rows if rows.shape[2] == 1 else rows[:, :, cut:]
            mask = queries if queries.shape[3] == 1 else queries[..., old:]
        return replace(
            call.copy(),
            query_BHTD=call.query_BHTD[here, :, cut:],
            key_BGSD=call.key_BGSD[here, :, old:],
            value_BGSD=call.value_BGSD[here, :, old:],
            mask=mask,
        )


def lone_rows(spec: ForwardSpec) -> list[LoneRow]:
    """The rows of a forward that is not one plain row; empty where padding is not all on the
    left.
    """
    rows = range(len(spec.tokens))
    if not isinstance(spec.mask, Mask2D):
        return [LoneRow(spec, row, 0) for row in rows] if spec.mask is None else []
    padding = [spec.length - sum(map(bool, mask)) for mask in spec.mask.rows]
    on_the_left = all(
        not any(mask[:count]) and all(mask[count:])
        for mask, count in zip(spec.mask.rows, padding, strict=True)
    )
    return [LoneRow(spec, row, padding[row]) for row in rows] if on_the_left else []
