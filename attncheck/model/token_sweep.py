"""Every token of a row replaced in turn, in batches: what stands before it must stay.

Each batch holds the row as it is beside the changed rows, so that all were computed by the same
kernels. A changed row that moves is run alone. Where it then stays, the batch runs again with this
one row restored, so that what a neighbour does is not taken for what the future does.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.core.errors import CallFailed, Unsupported
from attncheck.core.measurement import Comparison
from attncheck.core.merging import merged
from attncheck.model.attempts import unnamed
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff

MOST_ROWS = 64
SUSPECTS = 3
"""Rows that moved and are run again before a batch is cleared."""
PAIRS = 4
"""Pairs of rows in the largest batch of `as_proven`."""
AS_PROVEN = "as without a mask and a cache, where each token was replaced"


@final
@dataclass(frozen=True)
class TokenChange:
    """A row that differs from the usual one from position `cut` on, and in which way."""

    cut: int
    row: Row
    note: str


Changes = Mapping[str, Sequence[TokenChange]]


def compare_changes(
    subject: Subject, usual: ForwardSpec, changes: Changes, turn: int = 0
) -> dict[str, Comparison]:
    """One case for each named list of changes of `usual`, a forward of one row: the logits in front
    of each cut. `turn` puts the rows of the batches in another order.

    Raises:
        Unsupported: the model cannot be called this way (CallFailed: it breaks on such a call).
    """
    found: dict[str, list[Comparison]] = {name: [] for name in changes}
    for rows in _batches(subject, usual, changes, turn):
        try:
            batch = _Batch(subject, usual, rows)
            for name, each in changes.items():
                found[name] += batch.compared(name, each)
        except CallFailed:
            raise
        except Unsupported:
            # it takes no batch, or no such call: then the first row alone raises, too
            for name, each in changes.items():
                found[name] += [
                    _alone(subject, name, usual, one) for one in each if one.row in rows
                ]
    return {name: merged(name, cases) for name, cases in found.items()}


def as_proven(
    subject: Subject, name: str, usual: ForwardSpec, proven: ForwardSpec, pairs: int = 1
) -> Comparison | None:
    """One way to call the model against another that was shown not to read ahead, on two rows that
    have no token in common: what gives the same logits reads as far. None where it does not, or
    takes no batch, so that every token has to be replaced.

    `pairs` puts the two rows so many times into one batch, as far as the logits of all fit into
    the memory of passes: each sequence of a batch is compared at every position.

    Raises:
        CallFailed: the model breaks on this call.
    """
    row = usual.tokens[0]
    rows = (row, subject.inputs.other(row, salt=53))
    try:
        want_BTV = subject.logits(_of(proven, rows))
        pairs = max(1, min(pairs, subject.passes.memory_limit // want_BTV.nbytes))
        got_BTV = subject.logits(_of(usual, rows * pairs))
    except CallFailed:
        raise
    except Unsupported:
        return None
    each = (got_BTV[start : start + len(rows)] for start in range(0, len(got_BTV), len(rows)))
    spec = usual, proven
    case = merged(
        name, [subject.compare(name, got, want_BTV, note=AS_PROVEN, spec=spec) for got in each]
    )
    return None if case.beyond or case.nonfinite else case


def _batches(
    subject: Subject, usual: ForwardSpec, changes: Changes, turn: int
) -> Iterator[tuple[Row, ...]]:
    """The changed rows in groups whose logits fit into the memory of passes, with the usual row
    first or last.
    """
    rows = list(dict.fromkeys(one.row for each in changes.values() for one in each))
    start = turn * len(rows) // 4 % len(rows)
    rows = rows[start:] + rows[:start]
    one_row = subject.logits(ForwardSpec(usual.tokens)).nbytes
    size = max(1, min(MOST_ROWS, subject.passes.memory_limit // one_row) - 1)
    for begin in range(0, len(rows), size):
        here = tuple(rows[begin : begin + size])
        yield (*here, *usual.tokens) if turn % 2 else (*usual.tokens, *here)


def _of(usual: ForwardSpec, rows: tuple[Row, ...]) -> ForwardSpec:
    mask = usual.mask
    if isinstance(mask, Mask2D):
        mask = replace(mask, rows=mask.rows * len(rows))
    return replace(usual, tokens=rows, mask=mask)


@final
class _Batch:
    """The logits of one batch, and where the usual row is in it."""

    def __init__(self, subject: Subject, usual: ForwardSpec, rows: tuple[Row, ...]) -> None:
        self.subject, self.usual, self.spec = subject, usual, _of(usual, rows)
        self.logits_BTV = subject.logits(self.spec)
        self.number = {row: at for at, row in enumerate(rows)}

    def compared(self, name: str, changes: Sequence[TokenChange]) -> list[Comparison]:
        """At most one case: the row that moved most, with all positions counted."""
        here = sorted(
            (each for each in changes if each.row in self.number), key=self._moved, reverse=True
        )
        if not here:
            return []
        case = self._in_batch(name, here[0])
        if case.beyond and not case.nonfinite and not unnamed():
            case = self._confirmed(name, here[:SUSPECTS])
        positions = sum(each.cut for each in here)
        return [replace(case, divergence=replace(case.divergence, positions=positions))]

    def _pair(self, change: TokenChange) -> tuple[Tensor, Tensor]:
        numbers = self.number[change.row], self.number[self.usual.tokens[0]]
        got, want = (self.logits_BTV[at : at + 1, : change.cut] for at in numbers)
        return got, want

    def _moved(self, change: TokenChange) -> float:
        moved = max_abs_diff(*self._pair(change))
        return moved if moved == moved else float("inf")

    def _in_batch(self, name: str, change: TokenChange) -> Comparison:
        both = _alone_specs(self.usual, change)
        return self.subject.compare(name, *self._pair(change), note=change.note, spec=both)

    def _confirmed(self, name: str, suspects: Sequence[TokenChange]) -> Comparison:
        """The first suspect that moves alone, or in the batch with nothing else changed."""
        alone = []
        for change in suspects:
            alone.append(_alone(self.subject, name, self.usual, change))
            if alone[-1].beyond:
                return alone[-1]
        beside = (case for change in suspects for case in self._in_its_row(name, change))
        return next((case for case in beside if case.beyond), alone[0])

    def _in_its_row(self, name: str, change: TokenChange) -> Iterator[Comparison]:
        """The batch against itself with this one row as usual; then the usual row in this place
        against itself with another future of the first position that moved.
        """
        at, usual = self.number[change.row], self.usual.tokens[0]
        where = f"in sequence {at + 1} of a batch of {len(self.spec.tokens)}"
        restored = self._with_row(at, usual)
        yield self._row_moved(name, self.spec, restored, at, change.cut, f"{change.note}, {where}")
        first = self._in_batch(name, change).divergence.first_position
        if first is not None:
            future = self.subject.inputs.other(usual, first + 1)
            note = f"tokens from position {first + 1} on changed, {where}"
            changed = self._with_row(at, future)
            yield self._row_moved(name, changed, restored, at, first + 1, note)

    def _with_row(self, at: int, row: Row) -> ForwardSpec:
        rows = self.spec.tokens
        return _of(self.usual, (*rows[:at], row, *rows[at + 1 :]))

    def _row_moved(
        self, name: str, got: ForwardSpec, want: ForwardSpec, row: int, cut: int, note: str
    ) -> Comparison:
        return self.subject.compare_forwards(name, got, want, row=row, at=slice(0, cut), note=note)


def _alone_specs(usual: ForwardSpec, change: TokenChange) -> tuple[ForwardSpec, ForwardSpec]:
    return replace(usual, tokens=(change.row,)), usual


def _alone(subject: Subject, name: str, usual: ForwardSpec, change: TokenChange) -> Comparison:
    both, before = _alone_specs(usual, change), slice(0, change.cut)
    return subject.compare_forwards(name, *both, at=before, note=change.note)
