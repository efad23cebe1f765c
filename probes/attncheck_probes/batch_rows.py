"""A row's logits do not depend on its neighbours.

What it checks
    The logits of a row stay when another row of the batch changes, when the rows change places, and
    when the row runs alone: in one forward, and decoded on one cache for all rows.

Why it matters
    Batches are put together by chance. A reshape that merges batch and heads in one order and
    splits them in another, a cache whose rows were moved, or a buffer kept for row 0 makes an
    answer depend on the other requests.

How it measures
    Three rows of one length without padding: their batch against itself with the middle row
    replaced, against the batch in another order, and against each row's own forward, in one forward
    and in chunks on a cache.

False alarms
    Kernels sum in another order for another batch size: half precision shows that, and precision
    escalation decides. Mixture models whose experts have a capacity drop tokens depending on the
    whole batch, by design.

References
    vLLM issue 5898 and many like it (the answer changes with the batch: nearly always rounding).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.probing import (
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Tokens,
    attempt,
    chosen,
    decode_chunks,
    media_batches,
    merged,
    reference_forward,
)

# Axes: B batch, T positions, V vocabulary.

TAIL = 3
ORDER = (2, 0, 1)
"""Row i of the reordered batch is row ORDER[i] of the batch: no row keeps its place."""


@dataclass(frozen=True, kw_only=True)
class BatchRows(Probe):
    """Runs three rows together, in another order, and one by one."""

    name = "batch-rows"
    title = "rows of a batch do not read each other"
    controls = ("rows-mixed", "cache-reorder")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The neighbour changed, the order changed, each row alone; then on a cache."""
        row, other = subject.inputs.row, subject.inputs.other
        rows = (row, other(row, salt=11), other(row, salt=12))
        for name, measured in {
            "another row changed": _neighbour,
            "rows in another order": _reordered,
            "alone": _alone,
        }.items():
            if chosen(name):
                yield measured(subject, name, rows)
        name = "alone, decoded on one cache"
        yield attempt(name, _decoded, subject, name, rows)
        yield from media_batches.beside(subject)


def _neighbour(subject: Subject, name: str, rows: Tokens) -> Measurement:
    usual = ForwardSpec(rows)
    changed = ForwardSpec((rows[0], subject.inputs.other(rows[1], salt=13), rows[2]))
    got_BTV, want_BTV = (subject.logits(each)[::2] for each in (changed, usual))
    note = "the rows beside it stay"
    return subject.compare(name, got_BTV, want_BTV, note=note, spec=(changed, usual))


def _reordered(subject: Subject, name: str, rows: Tokens) -> Measurement:
    usual, reordered = ForwardSpec(rows), ForwardSpec(tuple(rows[i] for i in ORDER))
    got_BTV, want_BTV = subject.logits(reordered), subject.logits(usual)[list(ORDER)]
    return subject.compare(name, got_BTV, want_BTV, spec=(reordered, usual))


def _decoded(subject: Subject, name: str, rows: Tokens) -> Measurement:
    subject.can.steps.require()
    length = subject.inputs.length
    return _alone(subject, name, rows, decode_chunks(subject, length, length - TAIL))


def _alone(subject: Subject, name: str, rows: Tokens, chunks: tuple[int, ...] = ()) -> Measurement:
    together, cases = ForwardSpec(rows, chunks=chunks), []
    for index, row in enumerate(rows):
        alone = reference_forward(subject, row, chunks[0]) if chunks else ForwardSpec((row,))
        note = f"row {index} of three"
        cases.append(
            subject.compare_forwards(name, together, alone, row=index, alone=True, note=note)
        )
    return merged(name, cases)
