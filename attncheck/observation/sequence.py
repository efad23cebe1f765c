"""One sequence out of a batch: its calls, hidden states and fingerprints, without its padding, to
compare it with the same sequence alone.

Axes: B batch, H heads, T query positions, S key slots, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS
from attncheck.core.errors import Unsupported
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.numerics.module_outputs import ModuleOutputs
from attncheck.observation.deviation import Deviation
from attncheck.observation.ledger import LedgerCall


@final
@dataclass(frozen=True)
class Sequence:
    """One row of a batch and the columns of its real tokens."""

    row: int
    first: int
    last: int

    @classmethod
    def of(cls, spec: ForwardSpec, row: int) -> Sequence:
        """The row's real tokens, which must stand together.

        Raises:
            Unsupported: the mask hides tokens between others, which the sequence alone would read.
        """
        real = spec.mask.rows[row] if isinstance(spec.mask, Mask2D) else (1,) * spec.length
        found = [column for column, value in enumerate(real) if value]
        if not all(real[found[0] : found[-1] + 1]):
            raise Unsupported("the mask hides tokens between others")
        return cls(row, found[0], found[-1] + 1)

    def alone(self, spec: ForwardSpec) -> ForwardSpec:
        """The same sequence as a forward of its own."""
        chunks, start = [], 0
        for size in spec.chunks:
            kept = min(start + size, self.last) - max(start, self.first)
            chunks += [kept] if kept > 0 else []
            start += size
        given = spec.positions
        return ForwardSpec(
            (spec.tokens[self.row][self.first : self.last],),
            chunks=tuple(chunks) if len(chunks) > 1 else (),
            positions=None if given is None else (given[self.row][self.first : self.last],),
            use_cache=spec.use_cache,
            attn=spec.attn,
            cache_kind=spec.cache_kind,
        )

    def in_batch(self, found: Deviation) -> Deviation:
        """A deviation of this sequence by its tokens in the batch."""
        at, key, start = (
            each + self.first if each > least else each
            for each, least in ((found.at, -1), (found.key, -1), (found.start, 0))
        )
        return replace(found, row=self.row, at=at, key=key, start=start)

    def states(self, states_BTX: Tensor) -> Tensor:
        """Its part of states (B, T, …)."""
        return states_BTX[self.row : self.row + 1, self.first : self.last]

    def prints(self, outputs: ModuleOutputs) -> ModuleOutputs:
        """Its part of the fingerprints."""
        return {
            event: replace(each, print_BTK=self.states(each.print_BTK))
            for event, each in outputs.items()
        }

    def calls(self, entries: list[LedgerCall]) -> list[LedgerCall]:
        """Its part of the calls of one module."""
        # slots of an encoder are no tokens of this sequence; its first call tells
        own = bool(entries) and entries[0].call.is_self_attention
        found = [self._call(entry, own) for entry in entries]
        return [entry for entry in found if entry is not None]

    def _call(self, entry: LedgerCall, own: bool) -> LedgerCall | None:
        start, stop = max(entry.start, self.first), min(entry.stop, self.last)
        if start >= stop:
            return None
        columns, seen = slice(start - entry.start, stop - entry.start), entry.stop if own else 0
        inside_BTHD = entry.inside_BTHD
        return LedgerCall(
            self._arguments(entry.call, columns, seen),
            entry.context_BTHD[self.row : self.row + 1, columns],
            None if entry.inside is None else self._arguments(entry.inside, columns, seen),
            None if inside_BTHD is None else inside_BTHD[self.row : self.row + 1, columns],
            start - self.first,
            stop - self.first,
        )

    def _arguments(self, call: AttentionCall, columns: slice, seen: int) -> AttentionCall:
        """Its part of a call. Of `seen` tokens, cached or new, a window keeps the newest; slots of
        padding are left out where the slots are tokens at all (`seen` is not 0).
        """
        row, slots = slice(self.row, self.row + 1), call.key_BGSD.shape[2]
        old = max(0, self.first - max(0, seen - slots)) if seen else 0
        mask = call.mask
        if mask is None and not call.inline:
            mask = allowed_BHTS(call)  # what follows from the number of queries must not change
        if isinstance(mask, Tensor) and mask.ndim == 4:
            mask = mask[row] if mask.shape[0] > 1 else mask
            mask = mask[:, :, columns] if mask.shape[2] > 1 else mask
            mask = mask[..., old:] if mask.shape[3] > 1 else mask
        return replace(
            call,
            query_BHTD=call.query_BHTD[row, :, columns],
            key_BGSD=call.key_BGSD[row, :, old:],
            value_BGSD=call.value_BGSD[row, :, old:],
            mask=mask,
        )
