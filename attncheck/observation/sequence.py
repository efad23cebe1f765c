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
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.numerics.module_outputs import ModuleOutputs
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
        """The row's real tokens; they stand together."""
        real = spec.mask.rows[row] if isinstance(spec.mask, Mask2D) else (1,) * spec.length
        found = [column for column, value in enumerate(real) if value]
        return cls(row, found[0], found[-1] + 1)

    def alone(self, spec: ForwardSpec) -> ForwardSpec:
        """The same sequence as a forward of its own."""
        chunks, start = [], 0
        for size in spec.chunks:
            kept = min(start + size, self.last) - max(start, self.first)
            chunks += [kept] if kept > 0 else []
            start += size
        return ForwardSpec(
            (spec.tokens[self.row][self.first : self.last],),
            chunks=tuple(chunks),
            use_cache=spec.use_cache,
            attn=spec.attn,
            cache_kind=spec.cache_kind,
        )

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
        found = [self._call(entry) for entry in entries]
        return [entry for entry in found if entry is not None]

    def _call(self, entry: LedgerCall) -> LedgerCall | None:
        start, stop = max(entry.start, self.first), min(entry.stop, self.last)
        if start >= stop:
            return None
        columns = slice(start - entry.start, stop - entry.start)
        inside_BTHD = entry.inside_BTHD
        return LedgerCall(
            self._arguments(entry.call, columns),
            entry.context_BTHD[self.row : self.row + 1, columns],
            None if entry.inside is None else self._arguments(entry.inside, columns),
            None if inside_BTHD is None else inside_BTHD[self.row : self.row + 1, columns],
            start - self.first,
            stop - self.first,
        )

    def _arguments(self, call: AttentionCall, columns: slice) -> AttentionCall:
        row = slice(self.row, self.row + 1)
        mask = call.mask
        if mask is None and not call.inline:
            mask = allowed_BHTS(call)  # what follows from the number of queries must not change
        if isinstance(mask, Tensor) and mask.ndim == 4:
            mask = mask[row] if mask.shape[0] > 1 else mask
            mask = mask[:, :, columns] if mask.shape[2] > 1 else mask
        return replace(
            call,
            query_BHTD=call.query_BHTD[row, :, columns],
            key_BGSD=call.key_BGSD[row],
            value_BGSD=call.value_BGSD[row],
            mask=mask,
        )
