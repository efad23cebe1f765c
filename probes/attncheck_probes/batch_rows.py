"""A row's answer does not depend on its neighbours.

What it checks
    The logits of a row stay when another row of the batch changes, when the rows change places, and
    when the row is asked alone; at once, and decoded on one cache for all rows.

Why it matters
    Batches are put together by chance. A reshape that merges batch and heads in one order and
    splits them in another, a cache whose rows were moved, or a buffer kept for row 0 makes an
    answer depend on who else was asked.

How it measures
    Three rows of one length and no padding: their batch against itself with the middle row
    replaced, against the batch in another order, and against each row's own forward, at once and in
    pieces on a cache.

False alarms
    Kernels sum in another order for another batch size: in half precision that is visible, and the
    ladder decides. Mixture models whose experts have a capacity drop tokens depending on the whole
    batch, by design.

References
    vLLM issue 5898 and many like it (the answer changes with the batch: rounding, nearly always).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from attncheck.probing import (
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Tokens,
    attempt,
    merged,
    pieces,
    yardstick,
)

# Axes: B batch, T positions, V vocabulary.

TAIL = 3
TURN = (2, 0, 1)
"""Row i of the turned batch is row TURN[i] of the batch: no row stays where it is."""


@final
@dataclass(frozen=True, kw_only=True)
class BatchRows(Probe):
    """Asks three rows together, in another order, and one by one."""

    name: ClassVar[str] = "batch-rows"
    title: ClassVar[str] = "rows of a batch do not read each other"
    needs: ClassVar[tuple[str, ...]] = ("sees_history",)
    controls: ClassVar[tuple[str, ...]] = ("rows-mixed", "cache-reorder")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The neighbour changed, the order changed, each row alone; then on a cache."""
        rows = _rows(subject)
        yield _neighbour(subject, rows)
        yield _turned(subject, rows)
        yield _alone(subject, "alone", rows, ())
        yield attempt("alone, decoded on one cache", _decoded, subject, rows)


def _rows(subject: Subject) -> Tokens:
    row, other = subject.inputs.row, subject.inputs.other
    return (row, other(row, salt=11), other(row, salt=12))


def _neighbour(subject: Subject, rows: Tokens) -> Measurement:
    usual, moved = (
        ForwardSpec(rows),
        ForwardSpec((rows[0], subject.inputs.other(rows[1], salt=13), rows[2])),
    )
    got_BTV, want_BTV = subject.logits(moved)[::2], subject.logits(usual)[::2]
    name, note = "another row changed", "the rows beside it stay"
    return subject.compare(name, got_BTV, want_BTV, note=note, spec=(moved, usual))


def _turned(subject: Subject, rows: Tokens) -> Measurement:
    usual, turned = ForwardSpec(rows), ForwardSpec(tuple(rows[i] for i in TURN))
    got_BTV, want_BTV = subject.logits(turned), subject.logits(usual)[list(TURN)]
    return subject.compare("rows in another order", got_BTV, want_BTV, spec=(turned, usual))


def _decoded(subject: Subject, rows: Tokens) -> Measurement:
    subject.can.steps.require()
    length = subject.inputs.length
    return _alone(
        subject, "alone, decoded on one cache", rows, pieces(subject, length, length - TAIL)
    )


def _alone(subject: Subject, name: str, rows: Tokens, chunks: tuple[int, ...]) -> Measurement:
    together = ForwardSpec(rows, chunks=chunks)
    logits_BTV, cases = subject.logits(together), []
    for index, row in enumerate(rows):
        alone = yardstick(subject, row, chunks[0]) if chunks else ForwardSpec((row,))
        pair = (logits_BTV[index : index + 1], subject.logits(alone))
        cases.append(
            subject.compare(name, *pair, note=f"row {index} of three", spec=(together, alone))
        )
    return merged(name, cases)
